#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "comm/backend_communicator.h"
#include "comm/rank_context.h"
#include "comm/tasks/task.h"

namespace lockstep::inline v0_2::detail {

class TaskCommunicator;

/// An operation of a TaskCommunicator: a task, which may await operations of other groups.
class TaskRequest final : public GroupRequest<TaskCommunicator> {
 public:
  TaskRequest(TaskCommunicator& group, Operation&& operation)
      : GroupRequest(group, std::move(operation)) {}

  /// Called once, before the first advance().
  void set_task(Task task) { task_ = std::move(task); }
  /// The operation that the task awaits; null if it awaits something else.
  Work* awaited_work() const { return task_.work(); }
  /// When the operation was issued.
  std::chrono::steady_clock::time_point begun() const { return begun_; }

  void advance() override;
  /// While the task awaits something else than an operation, it may be the turn of an earlier one:
  /// then the ranks that the first operation of the group waits for.
  std::vector<int> missing() const override;
  std::string note() const override;
  /// A task that awaits a later operation may wait for a rank that itself waits in an earlier one.
  /// Only the wait in the earlier one can name the rank at fault, so it times out first.
  std::chrono::milliseconds grace() const override {
    return task_.works() * std::chrono::milliseconds(200);
  }

 private:
  bool withdraw() override;

  Task task_;
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
};

/// Base of communicators whose operations are tasks. The smallest one is that of
/// tests/comm/loopback/loopback.cpp.
class TaskCommunicator : public BackendCommunicator {
 public:
  RankContext& context() const override { return *context_; }

  // Called by the context.
  void poll() override;
  std::size_t pending() const override { return incomplete(requests_); }
  void release(std::vector<std::shared_ptr<void>>& complete) override {
    take_complete(requests_, complete);
  }
  void drop(std::vector<std::shared_ptr<void>>& pending) override { take_all(requests_, pending); }
  /// Checks all operations.
  /// Throws: as check(const TaskRequest&).
  void check_requests();

  /// World ranks that the first operation that awaits another one waits for.
  std::vector<int> first_missing() const;

 protected:
  TaskCommunicator(std::shared_ptr<RankContext> context, int rank, int size)
      : BackendCommunicator(rank, size), context_(std::move(context)) {}

  /// Begins an operation: numbers it, and calls start(), which returns its task. Operations begin
  /// in the same order on all members.
  std::shared_ptr<TaskRequest> begin_task(Operation&& operation,
                                          const std::function<Task(TaskRequest&)>& start);
  const std::shared_ptr<RankContext>& shared_context() const { return context_; }
  bool has_requests() const { return !requests_.empty(); }

 private:
  /// Throws: CommError if a rank that the operation waits for has left or ended.
  virtual void check(const TaskRequest& request);

  std::shared_ptr<RankContext> context_;
  std::deque<std::shared_ptr<TaskRequest>> requests_;  ///< in order, until complete
};

/// One rank's state in a world whose operations run in other worlds of the same ranks, or of some
/// of them. A failure of one of these worlds ends all of them. They are used only under a CallGuard
/// of this context or its lock().
class ComposedRankContext : public RankContext {
 public:
  /// The worlds add this rank to the text.
  void fail(const Failure& failure) noexcept override;
  /// Checks the operations of all groups.
  void check(const BackendRequest&) override {
    attempt([&] { check_requests(); });
  }
  void expect_usable_thread() const override {
    for (const auto& world : worlds_) {
      static_cast<const BackendCommunicator&>(*world).context().expect_usable_thread();
    }
  }

 protected:
  /// worlds: in the order in which they get a failure. advance_worlds() goes in reverse order.
  ComposedRankContext(const Settings& settings, std::vector<std::shared_ptr<Communicator>> worlds)
      : RankContext(settings), worlds_(std::move(worlds)) {}

  const std::vector<std::shared_ptr<Communicator>>& worlds() const { return worlds_; }
  /// Throws: as TaskCommunicator::check_requests().
  void check_requests();
  /// Throws: the failure of the first world that has failed.
  void advance_worlds() {
    for (auto world = worlds_.rbegin(); world != worlds_.rend(); ++world) (*world)->make_progress();
  }

 private:
  void record(const Failure& failure) noexcept override;

  std::vector<std::shared_ptr<Communicator>> worlds_;
  std::mutex record_mutex_;
};

}  // namespace lockstep::detail
