#pragma once

#include <chrono>
#include <optional>

#include "launch/logs.h"
#include "launch/output.h"
#include "launch/signal_watch.h"
#include "launch/system.h"

namespace lockstep::inline v0_2::launch {

/// A terminal of the launcher's making: what a rank writes to slave is read unchanged from master.
/// A program asks whether its output is a terminal to decide on progress bars and buffering; rank
/// 0's answer should be the launcher's.
struct Terminal {
  Descriptor master;
  Descriptor slave;
};

/// Empty descriptors when the machine has no terminals to give: a pipe does then.
Terminal make_terminal(int model);

/// Gives the terminal the size of model, a descriptor of the real one.
void copy_window_size(int model, int master) noexcept;

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
