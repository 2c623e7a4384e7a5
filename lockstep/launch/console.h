#pragma once

#include "lockstep/launch/losses.h"
#include "lockstep/launch/output.h"
#include "lockstep/launch/signal_watch.h"

namespace lockstep::launch {

/// What the launcher keeps through all attempts of a job: its outputs, what was lost of them, and
/// its ear for signals, which must not be deaf between two attempts.
struct Console {
  Console() = default;
  ~Console() { drain(); }
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// Writes all that waits, however long it takes. Signals end the launcher from here on: a reader
  /// that never reads again must not make it deaf to Ctrl-C.
  void drain() noexcept {
    signals.unblock();
    outputs.out.write_all();
    outputs.err.write_all();
  }

  Outputs outputs;
  Losses losses;
  SignalWatch signals;
};

}  // namespace lockstep::launch
