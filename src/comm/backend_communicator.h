#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/operation.h"
#include "comm/request.h"

namespace lockstep::inline v0_2::detail {

class BackendCommunicator;
class RankContext;

/// One operation of this rank between begin and completion, in a backend whose RankContext polls
/// and waits. A progress thread may advance and complete it, too.
class BackendRequest : public Request {
 public:
  ~BackendRequest() override;

  /// Does what can be done without blocking.
  virtual void advance() = 0;
  std::vector<int> missing() const override = 0;
  /// How long after its timeout the operation is still waited for, so that a rank that knows more
  /// about the cause raises it first.
  virtual std::chrono::milliseconds grace() const { return {}; }

  bool complete() const final { return complete_.load(std::memory_order_acquire); }
  const Operation& operation() const { return operation_; }
  /// "all_reduce #17 (host) rank 2 of 4".
  std::string where() const;

  bool test() final;
  void wait() final;
  void abandon() noexcept final;
  void check() final;

 protected:
  BackendRequest(std::shared_ptr<BackendCommunicator> group, RankContext& context,
                 Operation&& operation);
  BackendCommunicator& backend_group() const { return *group_; }
  void set_complete();

 private:
  std::shared_ptr<BackendCommunicator> group_;
  RankContext& context_;  ///< of the group, which keeps it
  Operation operation_;
  std::atomic<bool> complete_{false};
};

/// A BackendRequest of one backend's communicators, complete where it is instantiated.
template <class Group>
class GroupRequest : public BackendRequest {
 public:
  GroupRequest(Group& group, Operation&& operation)
      : BackendRequest(group.shared_from_this(), group.context(), std::move(operation)) {}

  Group& group() const { return static_cast<Group&>(backend_group()); }
};

class RankContext;

/// A rank's view of a group whose operations its RankContext polls and waits for. A backend derives
/// its communicator from it.
class BackendCommunicator : public Communicator,
                            public std::enable_shared_from_this<BackendCommunicator> {
 public:
  void fail(std::string_view cause) noexcept final;
  void fail_with(const control::Failure& failure) noexcept final;
  void look() final;

  virtual RankContext& context() const = 0;
  /// "all_reduce #17 (host) rank 2 of 4".
  std::string where(std::string_view label) const;

  // For the context, under a Use or the same lock.
  /// Does what can be done without blocking.
  virtual void poll() = 0;
  /// How much is still to be done: operations, or parts of them. Only a context with a progress
  /// thread asks.
  virtual std::size_t pending() const { return 0; }
  /// Hands over complete operations. Only a context that may have a progress thread asks; without
  /// one, poll() releases them.
  virtual void release(std::vector<std::shared_ptr<void>>& /*complete*/) {}
  /// Releases or hands over the pending operations, after the world has failed.
  virtual void drop(std::vector<std::shared_ptr<void>>& /*pending*/) {}

 protected:
  using Communicator::Communicator;
};

}  // namespace lockstep::detail
