#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/backend_communicator.h"
#include "comm/control/failure.h"
#include "comm/progress_thread.h"
#include "comm/rank_failure.h"
#include "comm/waiting.h"
#include "core/deadline.h"

namespace lockstep::inline v0_2::detail {

/// How a rank waits in a backend.
struct WaitPolicy {
  int spins;       ///< polls before the rank gives up its core
  int yields = 0;  ///< polls after those; the rank yields its core after each
  /// Only polls of this rank move bytes: it spins again after each pause, and yields its core
  /// instead of sleeping while something has come in the last 20 ms. Otherwise another rank wakes
  /// this one.
  bool must_poll = true;
  /// Least time between two checks of other ranks in one wait.
  std::chrono::milliseconds between_checks{};
};

/// One rank's state in a backend, shared by all its groups. It waits for operations and keeps their
/// timeouts, raises failures, admits one thread of the program at a time, and runs the progress
/// thread. A backend derives from it and supplies the private functions. Note [How a rank waits] is
/// in rank_context.cpp.
class RankContext {
 public:
  RankContext(const RankContext&) = delete;
  RankContext& operator=(const RankContext&) = delete;

  int rank() const { return rank_; }
  /// Whether this is a child that the rank's process forked off. The rank is the parent's.
  bool in_child() const noexcept { return usage_.in_child(); }

  /// The highest number of a group that this rank is or was in.
  int last_group() const { return last_group_; }
  void set_last_group(int number) { last_group_ = number; }

  void add(BackendCommunicator& group) { groups_.push_back(&group); }
  void remove(BackendCommunicator& group) { std::erase(groups_, &group); }
  /// Locks the mutex that a Use holds, if there is one, for callers that are not operations.
  std::unique_lock<std::mutex> hold();

  /// Starts the progress thread, which advances operations between calls. Called once. Throws:
  /// CommError when the process may start no more threads.
  void start_progress_thread();
  bool has_thread() const { return thread_.has_value(); }
  /// To be called in a Use that leaves an operation under way.
  void wake_thread() {
    if (thread_) thread_->wake();
  }

  /// Held by every call that touches this rank's groups. Keeps the progress thread out.
  class Use {
   public:
    /// Throws: InvalidArgument naming backend and rank when another thread of the program is
    /// inside, where the backend admits the main thread only, and in a child that was forked off.
    explicit Use(RankContext& context);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    static RankContext& admitted(RankContext& context);

    RankContext& context_;
    OneThread one_;
    std::unique_lock<std::mutex> lock_;
  };

  // Under a Use.
  /// Advances all groups of this rank; true if the backend has seen something come.
  bool poll();
  /// Polls; whether the operation is complete. Throws what ended the world.
  bool finished(const BackendRequest& operation);
  /// Polls until the operation is complete, spinning, yielding, then sleeping. Throws what ended
  /// the world.
  void wait(const BackendRequest& operation);
  /// Ends the world when a rank that the operation waits for has left. May throw what ended the
  /// world.
  virtual void check(const BackendRequest& operation) = 0;

  virtual bool failed() const = 0;
  /// Throws what ended the world, as this rank raises it, and releases pending operations. Under a
  /// Use.
  [[noreturn]] void throw_failure(std::string_view where);
  /// Ends the world for the program of this rank, unless it has ended: its next error is a later
  /// one. The rank of the failure is a world rank. Any thread.
  virtual void fail(FailureKind kind, const control::Failure& failure) noexcept;
  /// The failure by an exception in the program of this rank.
  control::Failure failure_of_program(std::string_view text) const noexcept {
    return control::failure_of_program(named(rank_), text);
  }
  /// The same for an operation of the group that will never be waited for.
  void abandon(BackendCommunicator& group, std::string_view cause) noexcept;

 protected:
  struct Settings {
    std::string_view backend;
    int rank;
    std::chrono::milliseconds timeout;  ///< longest wait of one operation
    WaitPolicy policy;
    /// A mutex guards operations, so that a progress thread may advance them and any thread may
    /// destroy groups.
    bool has_mutex;
  };
  explicit RankContext(const Settings& settings);
  ~RankContext();

  std::span<BackendCommunicator* const> groups() const { return groups_; }
  bool failure_raised() const noexcept { return raised_failure_.raised(); }
  /// The program of this rank raises the error that ends the world itself.
  void set_failure_raised() noexcept { raised_failure_.set_raised(); }
  void expect_own_process() const { usage_.expect_own_process(backend_, rank_); }
  /// A derived class stops the thread before it destroys anything that advance() uses.
  void stop_thread() noexcept {
    if (thread_) thread_->stop();
  }

 private:
  /// Advances all groups without blocking; true if something has come. Called by the progress
  /// thread, too.
  virtual bool advance() = 0;
  /// Ends the world unless it has ended. The rank of the failure is a world rank. Any thread.
  virtual void record(FailureKind kind, const control::Failure& failure) noexcept = 0;
  /// Tells other ranks of a recorded failure, where record() cannot. Under a Use; any number of
  /// times.
  virtual void spread() noexcept {}
  /// Why the world ended.
  virtual control::Failure failure() = 0;
  /// The world rank, which messages name.
  virtual int named(int rank) const { return rank; }
  /// The ranks that an operation misses, for its timeout.
  virtual std::string awaited(std::span<const int> ranks) const;
  /// Sleeps until something may have come, for at most longest, unless over() holds; whether it
  /// does. over() is called after other ranks can see that this rank is about to sleep.
  virtual bool sleep_unless(const std::function<bool()>& over, std::chrono::nanoseconds longest);
  /// Called in a wait that has lasted for a second, again and again. Throws what ended the world.
  virtual void check_deadlock(const BackendRequest& /*operation*/) {}
  /// A wait that was not over at once has ended.
  virtual void end_long_wait() noexcept {}
  /// Throws: InvalidArgument where this thread may not call the backend.
  virtual void expect_usable_thread() const {}

  struct LongWait;
  bool spin(const BackendRequest& operation);
  void wait_long(const BackendRequest& operation);
  void look(LongWait& wait);
  void check_time(LongWait& wait);
  std::size_t pending() const;
  ProgressThread::Outcome advance_alone();

  std::string_view backend_;
  int rank_;
  std::chrono::milliseconds timeout_;
  WaitPolicy policy_;
  bool has_mutex_;
  std::mutex mutex_;
  Usage usage_;
  RaisedFailure raised_failure_;
  std::vector<BackendCommunicator*> groups_;
  int last_group_ = 0;
  std::vector<std::shared_ptr<void>> complete_;  ///< operations that a Use releases
  bool news_ = false;                            ///< something has come, since a wait looked last
  bool entered_ = false;                         ///< by a Use, since the thread looked last
  std::optional<ProgressThread> thread_;
};

}  // namespace lockstep::detail
