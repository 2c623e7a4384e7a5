#pragma once

#include <chrono>
#include <optional>
#include <set>

#include "launch/logs.h"
#include "launch/output.h"
#include "launch/signal_watch.h"
#include "launch/system.h"

namespace lockstep::inline v0_2::launch {

/// A pseudo-terminal: bytes that a rank writes to slave are read unchanged from master. Programs
/// check whether their output is a terminal to select progress bars and buffering. With it, rank 0
/// gets the same answer as the launcher.
struct Terminal {
  Descriptor master;
  Descriptor slave;
};

/// Creates a pseudo-terminal with the window size of model, the descriptor of a terminal. Empty
/// descriptors if that fails; the caller then uses a pipe.
Terminal make_terminal(int model);

/// Copies the window size of model to the pseudo-terminal.
void copy_window_size(int model, int master) noexcept;

/// The launcher's state that persists through all attempts of a job: its outputs, lost output, and
/// signals.
class Console {
 public:
  /// Time without progress of a reader after which queued output is discarded; none: never.
  using Patience = std::optional<std::chrono::milliseconds>;
  static constexpr std::chrono::milliseconds short_patience{2000};

  /// forward_signals: SIGUSR1 and SIGUSR2 are kept for the ranks.
  explicit Console(bool forward_signals) : signals(forward_signals) {}
  /// Writes queued output, with short_patience.
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// Writes all queued output. Discards the rest after `patience` without progress of the reader,
  /// or when a signal asks the launcher to end. Returns that signal.
  std::optional<int> drain(Patience patience) noexcept;

  /// Waits for `duration` and writes queued output. Returns early if a signal asks the launcher to
  /// end, with that signal.
  std::optional<int> pause(std::chrono::milliseconds duration) noexcept;

  Outputs outputs;
  Losses losses;
  SignalWatch signals;
  std::set<int> to_forward;  ///< signals for the ranks that were not sent to them yet

 private:
  using Clock = std::chrono::steady_clock;

  bool has_queued() const { return outputs.out.has_queued() || outputs.err.has_queued(); }
  /// Waits for a signal or a reader, at most until `until`, and writes queued output. Returns a
  /// signal that asks the launcher to end.
  std::optional<int> poll_once(std::optional<Clock::time_point> until) noexcept;
};

}  // namespace lockstep::launch
