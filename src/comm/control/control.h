#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/control/joining.h"
#include "comm/control/status_relay.h"
#include "core/failure.h"
#include "core/signal_safe_text.h"
#include "core/system/process.h"

namespace lockstep::inline v0_2::control {

/// Detects failures of ranks and links between hosts, for one rank. A thread sends heartbeats,
/// checks those of other ranks, and forwards the first failure. Note [How ranks of several hosts
/// watch one another] is in control.cpp.
class Control {
 public:
  /// Called by the thread at most once, with a failure that another rank has sent or that the
  /// thread has detected. It must not call this Control.
  using OnFailure = std::function<void(const Failure&)>;

  /// others are the connections from Gathering::wait() or join(). status: what this rank answers to
  /// `lockstep status`.
  /// Throws: CommError if the process cannot open another file or start another thread.
  Control(std::vector<Member> others, OnFailure on_failure, StatusSource status = {});
  /// Closes the connections. Unless this rank has called leave(), the other ranks treat this as a
  /// failure.
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  /// Sends the failure that ended the world to all other ranks, and returns the one that all ranks
  /// raise: the first that rank 0 had. If rank 0 does not answer within 1 s, this one. Any thread.
  Failure fail(const Failure& failure) noexcept;
  /// fail() in the handler of a crash of this rank. Async-signal-safe.
  void fail_by_crash(std::string_view text, int rank) noexcept;
  /// Tells the other ranks that this process may end now: it uses the world no more. Returns when
  /// this is sent, or after 1 s. Any thread.
  void announce_end() noexcept { await(Command::announce_end); }
  /// Tells the other ranks that this rank has left without a failure. Returns when this is sent, or
  /// after 1 s. Any thread.
  void leave() noexcept { await(Command::leave); }
  /// Whether a rank that this rank has a connection to has left. Any thread.
  bool another_has_left() const noexcept { return another_has_left_; }

 private:
  using Clock = std::chrono::steady_clock;
  enum class Command { none, announce_end, fail, leave, stop };

  struct Peer {
    Member member;
    Clock::duration last_frame{};  ///< time of the last frame, as running_ counts
    bool present = true;           ///< the rank has not left
    bool may_end = false;          ///< the end of its connection is no failure
    bool suspected = false;        ///< no frame for suspicion_
  };

  /// A time in which the process did not run.
  struct Stop {
    Clock::duration length{};
    Clock::duration end{};  ///< as running_ counts
  };

  static std::string who(const Peer& peer);
  void send_command(Command command, const Failure& failure = {}) noexcept;
  /// The same, and waits for at most 1 s until the thread has run it.
  void await(Command command, const Failure& failure = {}) noexcept;

  // Called by the thread.
  void run() noexcept;
  void watch();
  void run_command();
  void read_from(Peer& peer);
  /// Text about a stop of this process that explains the end of another rank; else empty.
  std::string after_stop() const;
  /// Processes the received frames.
  void process_frames(Peer& peer);
  void exchange_heartbeats();
  void suspect_host_of(const Peer& late);
  /// One text for each suspected host.
  std::vector<std::string> suspicions() const;
  std::string suspicion(const Peer& suspected) const;
  /// Names the suspected ranks of the host of this rank, which is suspected.
  std::string silence(const Peer& suspected) const;
  /// Adds the time since the last call to running_. If the process was stopped meanwhile, does not
  /// add it and returns false.
  bool update_clock(std::chrono::milliseconds interval);
  /// Ends the world by a failure that this rank has detected first, and prints it to stderr.
  void report_failure(const std::string& cause, int rank, const Peer* from);
  /// Ends the thread's work and sends the failure to all ranks except from. own: the failure came
  /// from fail().
  void end_by(const Failure& failure, const Peer* from, bool own);
  /// Whether this rank forwards and answers failures: rank 0.
  bool is_rank_0() const { return peers_.empty() || peers_.front().member.rank != 0; }
  void send_to_all(const Frame& frame, const Peer* but = nullptr);

  OnFailure on_failure_;
  std::vector<Peer> peers_;
  std::chrono::milliseconds limit_ = default_heartbeat;  ///< longest time without a frame
  std::chrono::milliseconds suspicion_{};  ///< time without a frame after which it is suspected
  detail::Descriptor events_;
  detail::Descriptor wake_event_;
  bool over_ = false;          ///< the thread's work has ended
  bool is_asking_ = false;     ///< rank 0 has this rank's failure, and answers
  Clock::duration running_{};  ///< running time of this thread, without stops of the process
  Stop last_stop_{};
  Clock::time_point last_reading_{};  ///< last clock reading of this thread
  pid_t process_;
  std::atomic<bool> another_has_left_{false};

  std::mutex mutex_;
  std::condition_variable done_changed_;
  Command command_ = Command::none;
  Failure failure_;
  std::optional<Failure> first_;  ///< when done
  bool done_ = false;

  detail::SignalSafeText<1024> crash_text_;
  int crashed_rank_ = -1;
  std::atomic<bool> has_crashed_{false};
  std::atomic<bool> has_ended_{false};  ///< the thread has sent everything
  std::optional<StatusRelay> relay_;    ///< set by the constructor

  std::thread thread_;
};

}  // namespace lockstep::control
