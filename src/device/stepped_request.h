#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/backend_communicator.h"
#include "device/device_rank_context.h"
#include "lockstep/work.h"

namespace lockstep::inline v0_2::device {

class SteppedCommunicator;

/// An operation of a SteppedCommunicator: a sequence of steps, each of which ends later.
class SteppedRequest final : public detail::GroupRequest<SteppedCommunicator> {
 public:
  /// Advances a step without blocking. Returns whether it has ended.
  using Step = std::function<bool()>;

  SteppedRequest(SteppedCommunicator& group, Operation&& operation);

  /// The steps of the operation. Called once, before the first advance().
  void set_steps(std::vector<Step> steps) { steps_ = std::move(steps); }
  /// Begins the operation of the host world that the current step waits for.
  void set_work(Work work) { work_ = std::move(work); }
  /// Returns whether that operation is complete, and takes its result.
  bool work_is_complete();

  void advance() override;
  std::vector<int> missing() const override { return work_.missing(); }
  /// Throws: CommError if a rank that the operation waits for has left or ended. TimeoutError if it
  /// waits for longer than its limit.
  void check_ranks();

 private:
  std::vector<Step> steps_;
  std::size_t next_ = 0;
  Work work_;
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
};

/// Base of the communicators of a DeviceRankContext. Its operations are SteppedRequests.
class SteppedCommunicator : public detail::BackendCommunicator {
 public:
  std::string_view backend() const override { return context_->backend(); }
  int world_rank(int rank) const override { return host_->world_rank(rank); }
  bool matches_by_tag() const override { return host_->matches_by_tag(); }
  DeviceRankContext& context() const override { return *context_; }
  const std::shared_ptr<DeviceRankContext>& shared_context() const { return context_; }

  /// The ranks of this group in the host world.
  Communicator& host() const { return *host_; }

  // Called by the context.
  void poll() override;
  std::size_t pending() const override;
  void release(std::vector<std::shared_ptr<void>>& complete) override;
  void drop(std::vector<std::shared_ptr<void>>& pending) override;
  /// Checks all operations.
  /// Throws: as SteppedRequest::check_ranks().
  void check();
  /// Ends the collectives that run on the device. Called after the world has failed, any number of
  /// times.
  virtual void abort() noexcept {}

  /// Adds the group to its context and returns a handle to it for the program. The destructor of
  /// the handle waits until the operations of the group are complete, which hold the group. Under a
  /// CallGuard, or before the progress thread is started.
  static std::shared_ptr<Communicator> handle(std::shared_ptr<SteppedCommunicator> group);

 protected:
  /// host: the ranks of this group in the host world.
  SteppedCommunicator(std::shared_ptr<DeviceRankContext> context,
                      std::shared_ptr<Communicator> host);

  /// Runs the operation in the host world.
  Work forward(Operation&& operation);
  /// Numbers the operation and calls start(), which begins the operation and sets its steps.
  std::shared_ptr<SteppedRequest> begin_steps(Operation&& operation,
                                              const std::function<void(SteppedRequest&)>& start);

  /// Called once, by handle().
  virtual void begin_use() { context_->add(*this); }

 private:
  /// Throws: CommError if the device's communication library reports an error.
  virtual void check_device() {}
  void finish() noexcept;

  std::shared_ptr<DeviceRankContext> context_;
  std::shared_ptr<Communicator> host_;
  std::deque<std::shared_ptr<SteppedRequest>> requests_;  ///< in order, until complete
};

}  // namespace lockstep::device
