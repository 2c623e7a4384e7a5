#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/operation.h"
#include "core/failure.h"
#include "lockstep/types.h"
#include "lockstep/work.h"

namespace lockstep::inline v0_2::detail {

class BackendCommunicator;
class FlightRecorder;
class RankContext;

/// The implementation of a Work in a backend: one operation that has begun.
class Request {
 public:
  virtual ~Request() = default;
  /// Whether the operation is complete. Does not advance it. Any thread.
  virtual bool complete() const = 0;
  /// Advances the operation without blocking; true when it is complete.
  /// Throws: the failure of the world.
  virtual bool test() = 0;
  /// Blocks until the operation is complete.
  /// Throws: the failure of the world.
  virtual void wait() = 0;
  /// Ends the world, naming this operation: an exception destroys its Work, so nothing will wait
  /// for it.
  virtual void abandon() noexcept = 0;
  /// Checks that every rank that the operation waits for still runs. Costs one or more system
  /// calls.
  /// Throws: the failure of the world.
  virtual void check() {}
  /// Ends the world if a wait of this length exceeds the timeout of the operation.
  /// Throws: the failure of the world.
  virtual void check_time(std::chrono::nanoseconds /*waited*/) {}
  /// The missing ranks: world ranks that the operation waits for. Of a BackendRequest, under a
  /// CallGuard.
  virtual std::vector<int> missing() const { return {}; }
  /// Text that the error of a wait for the operation ends with, after the ranks; "" for none.
  virtual std::string note() const { return {}; }
  /// The operation that the Work holds; null if it holds none.
  static std::shared_ptr<Request> of(const Work& work) { return work.request_; }
  /// The note of the operation that the Work holds; "" if it holds none.
  static std::string note_of(const Work& work) {
    return work.request_ != nullptr ? work.request_->note() : std::string();
  }

  /// Withdraws a receive that no message has matched. Returns whether it did: the operation is then
  /// complete.
  /// Throws: the failure of the world.
  virtual bool cancel() { return false; }
  /// The rank of the group whose message a receive gets; any_source if it is not known, and for
  /// other operations.
  int source() const { return source_.load(std::memory_order_relaxed); }
  void set_source(int rank) { source_.store(rank, std::memory_order_relaxed); }

  /// Called once when the operation has begun, for the flight record.
  virtual void record() noexcept {}

  /// Time in which this rank has reduced and copied data for the operation.
  std::chrono::nanoseconds worked() const { return worked_; }

  /// Reports the begin of the operation to the observer. wait_observed() reports its end.
  void observe(std::shared_ptr<OperationObserver> observer, const ObservedOperation& operation) {
    observer_ = std::move(observer);
    observed_ = operation;
    observer_->began(observed_);
  }
  bool is_observed() const { return observer_ != nullptr; }
  /// Calls wait(), then reports the end of the operation to the observer.
  void wait_observed();

 protected:
  std::chrono::nanoseconds worked_{};
  RequestInterval interval_;

 private:
  std::atomic<int> source_{any_source};  ///< a progress thread may set it
  std::shared_ptr<OperationObserver> observer_;
  ObservedOperation observed_;
};

/// One operation of this rank, in a backend whose RankContext polls and waits. A progress thread
/// may also advance and complete it.
class BackendRequest : public Request {
 public:
  ~BackendRequest() override;

  /// Advances the operation without blocking.
  virtual void advance() = 0;
  std::vector<int> missing() const override = 0;
  /// Time that is added to the operation's timeout, so that a rank that has more information about
  /// the cause times out first.
  virtual std::chrono::milliseconds grace() const { return {}; }

  bool complete() const final { return complete_.load(std::memory_order_acquire); }
  const Operation& operation() const { return operation_; }
  RankContext& context() const { return context_; }
  /// The number of the operation in the flight record of this rank; 0 if it is not recorded.
  std::uint64_t recorded() const { return recorded_.load(std::memory_order_relaxed); }
  /// "all_reduce #17 (host) rank 2 of 4".
  std::string where() const;
  /// " of group 1 (ranks 0, 2)"; empty for the world.
  std::string of_group() const;

  bool test() final;
  void wait() final;
  bool cancel() final;
  void abandon() noexcept final;
  void check() final;
  void check_time(std::chrono::nanoseconds waited) final;
  void record() noexcept final;

 protected:
  BackendRequest(std::shared_ptr<BackendCommunicator> group, RankContext& context,
                 Operation&& operation);
  BackendCommunicator& backend_group() const { return *group_; }
  void set_complete();

 private:
  /// Withdraws this receive if no message has matched it. Returns whether it did. Under a
  /// CallGuard, if the receive is not complete.
  virtual bool withdraw() { return false; }

  std::shared_ptr<BackendCommunicator> group_;
  RankContext& context_;  ///< owned by the group
  Operation operation_;
  std::atomic<bool> complete_{false};
  std::atomic<std::uint64_t> recorded_{
      0};  ///< number of the operation in the flight record; 0 for none
};

/// A BackendRequest whose group is of type Group, which must be complete where this is
/// instantiated.
template <class Group>
class GroupRequest : public BackendRequest {
 public:
  GroupRequest(Group& group, Operation&& operation)
      : BackendRequest(group.shared_from_this(), group.context(), std::move(operation)) {}

  Group& group() const { return static_cast<Group&>(backend_group()); }
};

/// Base of the communicators of backends whose RankContext polls and waits for operations.
class BackendCommunicator : public Communicator,
                            public std::enable_shared_from_this<BackendCommunicator> {
 public:
  void fail(std::string_view cause) noexcept final;
  void fail_with(const Failure& failure) noexcept final;
  void make_progress() final;
  void count_step() noexcept final;

  virtual RankContext& context() const = 0;
  /// The number in error texts, different for each group of this rank; 0 for the world.
  virtual int group_number() const { return 0; }
  /// Begins to record the operations of this group. Called by the context.
  void record_in(FlightRecorder& recorder);
  /// The index of the group in the flight record.
  std::uint16_t recorded_group() const { return recorded_group_; }

  // Called by the context, under a CallGuard or its lock.
  /// Advances all operations without blocking.
  virtual void poll() = 0;
  /// Number of operations, or stages of them, that are not complete. Called only if there is a
  /// progress thread.
  virtual std::size_t pending() const { return 0; }
  /// Moves complete operations to the argument. Called only if the context has a mutex; otherwise
  /// poll() releases them.
  virtual void release(std::vector<std::shared_ptr<void>>& /*complete*/) {}
  /// Removes the pending operations after the world has failed: releases them, or moves them to the
  /// argument.
  virtual void drop(std::vector<std::shared_ptr<void>>& /*pending*/) {}

 protected:
  using Communicator::Communicator;

  /// The number of these requests that are not complete.
  static std::size_t incomplete(const auto& requests) {
    return static_cast<std::size_t>(
        std::ranges::count_if(requests, [](const auto& request) { return !request->complete(); }));
  }
  /// Moves the complete ones of these requests, or all of them, to the second argument.
  static void take_complete(auto& requests, std::vector<std::shared_ptr<void>>& complete) {
    std::erase_if(requests, [&](auto& request) {
      if (!request->complete()) return false;
      complete.push_back(std::move(request));
      return true;
    });
  }
  static void take_all(auto& requests, std::vector<std::shared_ptr<void>>& all) {
    all.insert(all.end(), requests.begin(), requests.end());
    requests.clear();
  }

 private:
  std::uint16_t recorded_group_ = 0;
};

/// The values that ranks exchange in a split().
struct SplitChoice {
  std::int64_t color;
  std::int64_t key;
  std::int64_t own;  ///< a value of the backend
};

/// The choices of all ranks, in rank order. Collective.
std::vector<SplitChoice> exchange_choices(Communicator& group, const SplitChoice& mine);

/// The result of a split() into numbered groups on one rank.
struct NumberedSplit {
  /// Number of the new group. Higher than the number of any group of its ranks, so a rank's groups
  /// have different numbers.
  std::int64_t number;
  std::vector<int> ranks;  ///< of the new group, by (key, rank); empty for a negative color
};

/// last_number: the highest number of the groups that this rank is or was a member of. Collective.
NumberedSplit split_numbered(Communicator& group, int color, int key, std::int64_t last_number);

/// A number for a new group of all ranks of this group, higher than the last_number of each.
/// Collective. last_number: the highest number of the groups that this rank is or was a member of.
int agree_on_number(Communicator& group, int last_number);

/// members[rank] for each of the ranks.
std::vector<int> at_ranks(std::span<const int> members, std::span<const int> ranks);

/// Private memory of this process, 64-byte aligned and zeroed, for a backend whose ranks do not
/// share memory.
/// Throws: CommError naming the backend if memory is short.
std::shared_ptr<std::byte> take_private_memory(std::size_t bytes, std::string_view backend);

}  // namespace lockstep::detail
