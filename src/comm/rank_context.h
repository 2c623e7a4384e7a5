#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "comm/backend_communicator.h"
#include "comm/flight/deadlock.h"
#include "comm/flight/flight_recorder.h"
#include "comm/progress_thread.h"
#include "comm/waiting.h"
#include "core/deadline.h"
#include "core/failure.h"
#include "core/system/process.h"

namespace lockstep::inline v0_2::detail {

/// How a rank waits for an operation in a backend.
struct WaitPolicy {
  int spins;       ///< polls without yielding the core
  int yields = 0;  ///< polls after those, each followed by sched_yield()
  /// Whether only polls of this rank move bytes. It then spins again after each pause, and yields
  /// its core instead of sleeping while there was progress in the last 20 ms. If false, another
  /// rank wakes this one.
  bool must_poll = true;
  /// Least time between two checks of other ranks in one wait.
  std::chrono::milliseconds between_checks{};
  /// Least time between two searches for a deadlock in one wait.
  std::chrono::milliseconds between_searches{1000};
};

/// Ends the error about a rank that has left a world whose other ranks wait for it in an operation
/// of this source.
std::string remedy_of_leaving(const Source& source);

/// One rank's state in a backend, shared by all its groups. It waits for operations, enforces
/// timeouts, raises failures, admits one thread of the program at a time, and owns the progress
/// thread. A backend derives from it and overrides what differs. Note [How a rank waits]
/// is in rank_context.cpp.
class RankContext {
 public:
  RankContext(const RankContext&) = delete;
  RankContext& operator=(const RankContext&) = delete;

  std::string_view backend() const { return settings_.backend; }
  int rank() const { return settings_.rank; }
  /// Longest wait of one operation.
  std::chrono::milliseconds timeout() const { return settings_.timeout; }
  /// Whether this is a forked child of the rank's process. The child is not a rank.
  bool in_child() const noexcept { return process_.in_child(); }

  /// The highest number of all groups that this rank is or was a member of.
  int last_group() const { return last_group_; }
  void set_last_group(int number) { last_group_ = number; }

  /// Under a CallGuard or lock() once the progress thread runs, which reads the groups.
  void add(BackendCommunicator& group);
  void remove(BackendCommunicator& group);
  /// Begins to record the operations of this rank. Called once, for the outermost context of a
  /// rank. Null: operations are not recorded.
  void set_recorder(std::shared_ptr<FlightRecorder> recorder);
  FlightRecorder* recorder() const { return recorder_.get(); }
  /// Locks the mutex of CallGuard, if the context has one. For calls that are not operations, such
  /// as destructors of groups.
  std::unique_lock<std::mutex> lock();

  /// Starts the progress thread, which advances operations between calls. Called once.
  /// Throws: CommError if the process cannot start another thread.
  void start_progress_thread();
  bool has_thread() const { return thread_.has_value(); }
  /// Call it under a CallGuard after beginning an operation that is not complete yet.
  void wake_thread() {
    if (thread_) thread_->wake();
  }

  /// The guard of every call that uses this rank's groups. Excludes other threads, including the
  /// progress thread.
  class CallGuard {
   public:
    /// Throws: InvalidArgument naming backend and rank if another thread of the program holds a
    /// guard, as expect_usable_thread(), and in a forked child process.
    explicit CallGuard(RankContext& context);
    ~CallGuard();
    CallGuard(const CallGuard&) = delete;
    CallGuard& operator=(const CallGuard&) = delete;

   private:
    static RankContext& admitted(RankContext& context);

    RankContext& context_;
    std::unique_lock<std::mutex> lock_;
  };

  /// Throws: InvalidArgument if this thread may not call the backend, or no thread any more.
  virtual void expect_usable_thread() const {}

  // Under a CallGuard.
  /// Advances all groups of this rank. True if the backend made progress.
  bool poll();
  /// Polls, and returns whether the operation is complete.
  /// Throws: the failure of the world.
  bool finished(const BackendRequest& operation);
  /// Polls until the operation is complete: first spinning, then yielding, then sleeping.
  /// Throws: the failure of the world.
  void wait(const BackendRequest& operation);
  /// Polls until one of the operations is complete, and returns the lowest index of such. nullopt
  /// if the deadline passes first, or another thread requests a stop. Throws: the failure of the
  /// world.
  std::optional<std::size_t> wait_any(std::span<const BackendRequest* const> operations,
                                      std::chrono::steady_clock::time_point deadline,
                                      const std::stop_token& stop);
  /// Ends the world if a rank that the operation waits for has left it. May throw the failure of
  /// the world.
  virtual void check(const BackendRequest& /*operation*/) {}
  /// Ends the world if a wait of this length exceeds the timeout of the operation.
  /// Throws: the failure of the world.
  void check_time(const BackendRequest& operation, std::chrono::nanoseconds waited);

  virtual bool failed() const { return failure_.recorded(); }
  /// Releases pending operations and throws the failure of the world. Under a CallGuard.
  [[noreturn]] void throw_failure(std::string_view where);
  /// Ends the world by a failure in this rank's program, unless the world has failed before. The
  /// next error of this rank then says that the world failed earlier. failure.rank is a world rank.
  /// Any thread.
  virtual void fail(const Failure& failure) noexcept;
  /// The failure by an exception in this rank's program.
  Failure failure_of_program(Failure::Kind kind, std::string_view text) const noexcept {
    return Failure{.kind = kind, .rank = world_rank(rank())}.with(text);
  }
  /// The failure that ended the world, the same on all ranks. Under a CallGuard or lock().
  Failure first_failure() { return failure(); }
  /// Runs fn. An exception of type Caught ends the world and is rethrown.
  template <class Caught, class Fn>
  auto or_fail(const Fn& fn) {
    try {
      return fn();
    } catch (const Caught& error) {
      record_exception(error);
      throw;
    }
  }
  /// Runs fn. An exception ends the world.
  template <class Fn>
  void attempt(const Fn& fn) noexcept {
    try {
      fn();
    } catch (const std::exception& error) {
      record_exception(error);
    }
  }
  /// Called by an operation that has advanced.
  void set_advanced() { advanced_ = true; }
  /// fail() for an operation whose Work was destroyed by an exception.
  void abandon(BackendCommunicator& group, std::string_view cause) noexcept;

 protected:
  struct Settings {
    std::string_view backend;
    int rank;
    std::chrono::milliseconds timeout;  ///< longest wait of one operation
    WaitPolicy policy;
    /// Whether a mutex guards operations: required for a progress thread, and for groups that other
    /// threads may destroy.
    bool has_mutex;
  };
  explicit RankContext(const Settings& settings);
  ~RankContext();

  std::span<BackendCommunicator* const> groups() const { return groups_; }
  bool failure_raised() const noexcept { return raised_failure_.raised(); }
  /// Advances all groups without blocking; true if there was progress. Also called by the progress
  /// thread.
  virtual bool advance();
  /// Records the failure that ends the world, unless there is one. failure.rank is a world rank.
  /// Any thread. Without an override, in memory of this rank.
  virtual void record(const Failure& failure) noexcept { failure_.record(failure); }
  /// The recorded failure of the world.
  virtual Failure failure() { return failure_.failure(); }
  FailureRecord& failure_record() { return failure_; }
  /// This rank's program raises the first error of the world itself.
  void set_failure_raised() noexcept { raised_failure_.set_raised(); }
  /// Throws: InvalidArgument naming backend and rank in a forked child process.
  void expect_own_process() const;
  /// Derived classes must call it before they destroy anything that advance() uses.
  void stop_thread() noexcept {
    if (thread_) thread_->stop();
  }

 private:
  /// Sends a recorded failure to other ranks, for backends whose record() does not. Under a
  /// CallGuard; any number of times.
  virtual void propagate_failure() noexcept {}
  /// The world rank of a rank of this backend's world, for error texts.
  virtual int world_rank(int rank) const { return rank; }
  /// As detail::missing_text(), with what is known of the ranks.
  virtual std::string missing_text(std::span<const int> ranks) const {
    return detail::missing_text(ranks);
  }
  /// Unless the wait is over, sleeps until another rank wakes this one, for at most `longest`.
  /// Returns whether it is over. Other ranks must see that this rank is about to sleep before
  /// over.is_ready() is called.
  virtual bool sleep_unless(Condition& over, std::chrono::nanoseconds longest);
  /// Wakes the rank if it sleeps in sleep_unless(). Any thread of this process.
  virtual void interrupt() noexcept {}
  /// Publishes this rank's wait for the operation, where the backend has memory for it. Returns
  /// what each rank of this host waits for, there or else in its flight record. The search for a
  /// deadlock calls it repeatedly during a wait of more than a second.
  virtual WaitOf publish_wait(const BackendRequest& operation);
  /// The failure of the world by an exception.
  virtual Failure failure_by(const std::exception& error) const;
  /// Called once in the progress thread, before it advances operations.
  virtual void begin_progress_thread() noexcept {}
  /// Called at the end of a wait that did not end by spinning.
  virtual void end_long_wait() noexcept {}

  void record_exception(const std::exception& error) noexcept { record(failure_by(error)); }
  /// Polls, and returns whether complete().
  /// Throws: the failure of the world, naming the operation.
  template <class Complete>
  bool poll_for(const Complete& complete, const BackendRequest& operation);
  struct LongWait;
  template <class Over>
  void wait_long(LongWait& wait, const Over& over);
  std::optional<std::size_t> first_finished(std::span<const BackendRequest* const> operations);
  void check_long_wait(LongWait& wait);
  void check_deadlock(LongWait& wait, std::chrono::steady_clock::time_point now);
  void record_wait(LongWait& wait, std::chrono::steady_clock::time_point now);
  std::size_t pending() const;
  ProgressThread::Outcome advance_in_progress_thread();

  Settings settings_;
  std::mutex mutex_;
  ForkGuard process_;
  pid_t pid_;                      ///< of the process that joined the world
  std::atomic<bool> used_{false};  ///< a thread of the program holds a CallGuard
  FailureRecord failure_;
  RaisedFailure raised_failure_;
  std::vector<BackendCommunicator*> groups_;
  int last_group_ = 0;
  std::vector<std::shared_ptr<void>>
      complete_;             ///< operations that the end of a CallGuard releases
  bool progressed_ = false;  ///< progress since a wait read this last
  bool advanced_ = false;    ///< an operation has advanced since advance()
  bool entered_ = false;     ///< a CallGuard began since the progress thread read this last
  std::shared_ptr<FlightRecorder> recorder_;
  std::optional<ProgressThread> thread_;
};

}  // namespace lockstep::detail
