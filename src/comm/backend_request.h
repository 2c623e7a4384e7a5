#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/operation.h"
#include "comm/request.h"
#include "core/text.h"
#include "lockstep/types.h"
#include "lockstep/work.h"

namespace lockstep::inline v0_2::detail {

/// One operation of this rank between begin and completion, in a backend whose communicator has an
/// context() that polls and waits. Where the context has a thread, that may advance and complete
/// it, too. A backend instantiates it where its communicator is complete.
template <class Group>
class BackendRequest : public Request {
 public:
  BackendRequest(Group& group, Operation&& operation);
  ~BackendRequest() override;

  /// Does what can be done without blocking.
  virtual void advance() = 0;
  std::vector<int> missing() const override = 0;

  bool complete() const final { return complete_.load(std::memory_order_acquire); }
  const Operation& operation() const { return operation_; }
  /// "all_reduce #17 (host) rank 2 of 4".
  std::string where() const;

  Group& group() const { return *group_; }

  bool test() final;
  void wait() final;
  void abandon() noexcept final;
  void check() final;

 protected:
  void set_complete();

 private:
  std::shared_ptr<Group> group_;
  Operation operation_;
  std::atomic<bool> complete_{false};
};

template <class Group>
BackendRequest<Group>::BackendRequest(Group& group, Operation&& operation)
    : group_(group.shared_from_this()), operation_(std::move(operation)) {
  if (group.context().has_thread()) interval_.begun = std::chrono::steady_clock::now();
}

template <class Group>
BackendRequest<Group>::~BackendRequest() = default;

template <class Group>
std::string BackendRequest<Group>::where() const {
  return group_->where(operation_.label());
}

template <class Group>
void BackendRequest<Group>::set_complete() {
  if (group_->context().has_thread()) interval_.complete = std::chrono::steady_clock::now();
  complete_.store(true, std::memory_order_release);
}

template <class Group>
bool BackendRequest<Group>::test() {
  if (complete()) return true;
  auto& context = group_->context();
  const typename Group::Use use(context);
  context.poll();
  if (complete() || !context.failed()) return complete();
  context.poll();  // in a host's memory, what the others gave before the failure is visible now
  if (!complete()) context.throw_failure(where());
  return true;
}

template <class Group>
void BackendRequest<Group>::wait() {
  auto& context = group_->context();
  // The next call that enters the context releases the operations that the progress thread
  // completed.
  if (complete() && !context.has_thread()) return;
  const typename Group::Use use(context);
  context.wait(*this);
}

template <class Group>
void BackendRequest<Group>::check() {
  if (complete()) return;
  auto& context = group_->context();
  const typename Group::Use use(context);
  context.check(*this);
}

template <class Group>
void BackendRequest<Group>::abandon() noexcept {
  if (complete()) return;
  try {
    group_->abandon(
        concat(operation_.label(), " was abandoned: an exception left the scope of its Work"));
  } catch (...) {
    group_->abandon("an operation was abandoned");
  }
}

}  // namespace lockstep::detail
