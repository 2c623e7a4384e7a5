#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "launch/job/nodes.h"
#include "launch/job/output.h"
#include "launch/plan.h"
#include "launch/system.h"

namespace lockstep::inline v0_2::launch {

/// The signals that the launcher forwards.
inline constexpr std::array forwarded{SIGUSR1, SIGUSR2};
/// Whether the launcher forwards the signal.
constexpr bool is_forwarded(int signal) { return std::ranges::count(forwarded, signal) > 0; }

/// The signals that the launcher handles, read as events from a descriptor. A signal that the
/// launcher inherited as ignored (nohup) stays ignored. SIGCHLD does not, because the kernel would
/// then reap ranks before their exit status is read. Inherited blocked signals are unblocked.
/// SIGALRM only interrupts system calls.
///
/// SIGUSR1 and SIGUSR2 are for the ranks, and never end the launcher. They are read even if they
/// were inherited as ignored, because a rank may install a handler.
class SignalWatch {
 public:
  /// forward: next() returns SIGUSR1 and SIGUSR2; otherwise it discards them.
  explicit SignalWatch(bool forward = true);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  int fd() const { return events_.get(); }
  std::optional<signalfd_siginfo> next();
  /// A pending signal that asks the launcher to end, such as that of Ctrl-C.
  std::optional<int> pending_end_signal() const noexcept;

  /// For a forked child: unblocks all signals, and restores the dispositions that the launcher
  /// inherited, except an ignored SIGCHLD.
  void restore() const noexcept;

 private:
  bool forward_;
  Descriptor events_;
  std::map<int, struct sigaction> before_;  ///< the dispositions that restore() restores
};

/// The launcher's state that persists through all attempts of a job: its outputs, lost output,
/// signals, and connections to other nodes.
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

  /// Waits for `duration` and writes queued output. Returns early if a signal asks the launcher, or
  /// that of another node, to end, with that signal.
  std::optional<int> pause(std::chrono::milliseconds duration) noexcept;

  /// Waits for a signal, a reader of queued output, another node or what is awaited, at most until
  /// `until`. Appends its own descriptors to what is awaited. Returns the result of poll().
  int wait(std::vector<pollfd>& awaited,
           std::optional<std::chrono::steady_clock::time_point> until) const;

  Outputs outputs;
  Losses losses;
  SignalWatch signals;
  std::set<int> to_forward;    ///< signals for the ranks that were not sent to them yet
  std::set<int> untold;        ///< of those, the ones that other nodes do not know
  std::optional<Nodes> nodes;  ///< the other nodes, if there are any and they have joined

 private:
  using Clock = std::chrono::steady_clock;

  /// Waits for a signal or a reader, at most until `until`, and writes queued output. Returns a
  /// signal that asks the launcher to end.
  std::optional<int> poll_once(std::optional<Clock::time_point> until) noexcept;
};

/// The stdout and stderr of all ranks of an attempt, each copied to the launcher's output. If that
/// is a terminal, rank 0 writes to a pseudo-terminal.
class Streams {
 public:
  explicit Streams(Outputs& outputs) : outputs_(outputs) {}

  /// Creates the streams of each rank, and its log files.
  /// Throws: InvalidArgument for a log file that cannot be written. CommError if the system refuses
  /// descriptors.
  std::vector<WriteEnds> create(const Plan& plan);
  /// rank: on this host.
  const Stream& err(int rank) const { return streams_[2 * static_cast<std::size_t>(rank) + 1]; }

  /// Appends what poll() must wait for, in the order that read_ready() takes.
  void await(std::vector<pollfd>& awaited) const;
  /// Copies a part of what ranks have written.
  void read_ready(std::span<const pollfd> awaited);
  /// Copies what ranks have written to stderr.
  void read_errors();
  /// Copies what ranks have written, closes all streams, and notes lost output of log files.
  void close(Losses& losses);
  /// Copies the window size of the launcher's terminal to the pseudo-terminals.
  void copy_window_size() const noexcept;

 private:
  Descriptor add(int rank, Output& output, const Options& options, std::string_view log);

  Outputs& outputs_;
  std::deque<Stream> streams_;                  ///< stdout and stderr of each rank of this host
  std::vector<std::pair<int, int>> terminals_;  ///< the launcher's, and the pseudo-terminal
};

}  // namespace lockstep::launch
