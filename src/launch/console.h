#pragma once

#include <chrono>
#include <optional>

#include "launch/losses.h"
#include "launch/output.h"
#include "launch/signal_watch.h"

namespace lockstep::inline v0_2::launch {

/// The launcher's state through all attempts of a job: its outputs, their losses, and the signals
/// that it receives.
class Console {
 public:
  /// Longest time without progress of a reader, after which queued output is given up.
  using Patience = std::optional<std::chrono::milliseconds>;
  static constexpr std::chrono::milliseconds short_patience{2000};

  Console() = default;
  /// Writes what is queued, with short_patience.
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// Writes all that is queued, and gives up what a reader does not take: after patience without
  /// progress (none: never), or when a signal asks the launcher to end. Returns that signal.
  std::optional<int> drain(Patience patience) noexcept;

  /// Waits and writes what is queued meanwhile. Returns early with the signal that asks the
  /// launcher to end.
  std::optional<int> pause(std::chrono::milliseconds duration) noexcept;

  Outputs outputs;
  Losses losses;
  SignalWatch signals;

 private:
  using Clock = std::chrono::steady_clock;

  bool waiting() const { return outputs.out.waiting() || outputs.err.waiting(); }
  /// Waits for a signal or a reader until then, and writes. Returns a signal that asks to end.
  std::optional<int> turn(std::optional<Clock::time_point> until) noexcept;
};

}  // namespace lockstep::launch
