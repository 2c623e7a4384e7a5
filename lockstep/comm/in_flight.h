#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/operation.h"
#include "lockstep/comm/work.h"
#include "lockstep/core/text.h"

namespace lockstep::detail {

/// One operation of this rank between begin and completion, in a backend whose communicator has an
/// endpoint() that polls and waits. Where the endpoint has a thread, that may advance and complete
/// it, too. A backend instantiates it where its communicator is complete.
template <class Group>
class InFlightIn : public Ticket {
 public:
  InFlightIn(Group& group, Operation&& operation);
  ~InFlightIn() override;

  /// Does what can be done without blocking.
  virtual void advance() = 0;
  std::vector<int> missing() const override = 0;

  bool complete() const final { return complete_.load(std::memory_order_acquire); }
  const Operation& operation() const { return operation_; }
  /// "all_reduce #17 (host) rank 2 of 4".
  std::string where() const;

  bool test() final;
  void wait() final;
  void abandon() noexcept final;
  void check() final;

 protected:
  void set_complete();
  Group& group() const { return *group_; }

 private:
  std::shared_ptr<Group> group_;
  Operation operation_;
  std::atomic<bool> complete_{false};
};

template <class Group>
InFlightIn<Group>::InFlightIn(Group& group, Operation&& operation)
    : group_(group.shared_from_this()), operation_(std::move(operation)) {
  if (group.endpoint().has_thread()) apart_.begun = std::chrono::steady_clock::now();
}

template <class Group>
InFlightIn<Group>::~InFlightIn() = default;

template <class Group>
std::string InFlightIn<Group>::where() const {
  return group_->where(operation_.label());
}

template <class Group>
void InFlightIn<Group>::set_complete() {
  if (group_->endpoint().has_thread()) apart_.complete = std::chrono::steady_clock::now();
  complete_.store(true, std::memory_order_release);
}

template <class Group>
bool InFlightIn<Group>::test() {
  if (complete()) return true;
  auto& endpoint = group_->endpoint();
  const typename Group::Use use(endpoint);
  endpoint.poll();
  if (complete() || !endpoint.failed()) return complete();
  endpoint.poll();  // in a host's memory, what the others gave before the failure is visible now
  if (!complete()) endpoint.throw_failure(where());
  return true;
}

template <class Group>
void InFlightIn<Group>::wait() {
  auto& endpoint = group_->endpoint();
  // What a thread completed is let go of by whoever polls next.
  if (complete() && !endpoint.has_thread()) return;
  const typename Group::Use use(endpoint);
  endpoint.wait(*this);
}

template <class Group>
void InFlightIn<Group>::check() {
  if (complete()) return;
  auto& endpoint = group_->endpoint();
  const typename Group::Use use(endpoint);
  endpoint.check(*this);
}

template <class Group>
void InFlightIn<Group>::abandon() noexcept {
  if (complete()) return;
  try {
    group_->abandon(
        concat(operation_.label(), " was abandoned: an exception left the scope of its Work"));
  } catch (...) {
    group_->abandon("an operation was abandoned");
  }
}

}  // namespace lockstep::detail
