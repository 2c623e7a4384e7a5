#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/control/failure.h"
#include "comm/control/offer.h"
#include "core/process.h"

namespace lockstep::inline v0_2::control {

/// This rank's part in the watch that ranks of several hosts keep over one another. A thread sends
/// heartbeats, expects those of others, and forwards the first cause of a failure. Note [How ranks
/// of several hosts watch one another] is in control.cpp.
class Control {
 public:
  /// Called by the thread, once at most, with a failure that others told of or that shows in their
  /// silence. It must not call this Control.
  using OnFailure = std::function<void(const Failure&)>;

  /// The others are those that Gathering or join() has met. Throws: CommError when the process may
  /// open no more files or start no more threads.
  Control(std::vector<Member> others, OnFailure on_failure);
  /// Unless it has left, the others learn that this rank has ended.
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  /// Tells all other ranks what ended the world; returns when that is on its way, or after a fifth
  /// of a second. Any thread.
  void fail(const Failure& failure) noexcept;
  /// Tells the others that all is well and this rank takes part in nothing more. Any thread.
  void leave() noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  enum class Order { none, fail, leave, stop };

  struct Peer {
    Member member;
    Clock::duration heard{};  ///< when, by running_
    bool here = true;         ///< it has not left
  };

  static std::string who(const Peer& peer);
  void give(Order order, const Failure& failure = {}) noexcept;
  void await_done(std::chrono::milliseconds limit) noexcept;

  // Run by the thread.
  void run() noexcept;
  void watch();
  void obey();
  void hear(Peer& peer);
  /// Takes the frames that have come.
  void take(Peer& peer);
  void beat();
  std::string silence(const Peer& silent) const;
  /// Adds the time since the last call to running_. False if the process was stopped meanwhile:
  /// that time does not count.
  bool look_at_clock(std::chrono::milliseconds interval);
  /// Ends the watch for what this rank is the first to see, and says it on stderr.
  void found(const std::string& cause, int rank, const Peer* from);
  /// Ends the watch and sends the failure to all but from. An own failure is recorded here already.
  void end(const Failure& failure, const Peer* from, bool own);
  void tell_all(const Frame& frame, const Peer* but = nullptr);
  void send_rest();

  OnFailure on_failure_;
  std::vector<Peer> peers_;
  std::chrono::milliseconds limit_{};  ///< longest silence
  detail::Descriptor events_;
  detail::Descriptor bell_;
  bool over_ = false;           ///< the thread has nothing more to watch for
  Clock::duration running_{};   ///< time that this thread has watched
  Clock::time_point looked_{};  ///< at the clock, by this thread
  pid_t process_;

  std::mutex mutex_;
  std::condition_variable done_told_;
  Order order_ = Order::none;
  Failure failure_;
  bool done_ = false;

  std::thread thread_;
};

}  // namespace lockstep::control
