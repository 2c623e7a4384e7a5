#include "comm/backend_communicator.h"

#include "comm/rank_context.h"
#include "core/text.h"

namespace lockstep::inline v0_2::detail {

BackendRequest::BackendRequest(std::shared_ptr<BackendCommunicator> group, RankContext& context,
                               Operation&& operation)
    : group_(std::move(group)), context_(context), operation_(std::move(operation)) {
  if (context_.has_thread()) interval_.begun = std::chrono::steady_clock::now();
}

BackendRequest::~BackendRequest() = default;

std::string BackendRequest::where() const { return group_->where(operation_.label()); }

void BackendRequest::set_complete() {
  if (context_.has_thread()) interval_.complete = std::chrono::steady_clock::now();
  complete_.store(true, std::memory_order_release);
}

bool BackendRequest::test() {
  if (complete()) return true;
  const RankContext::CallGuard guard(context_);
  return context_.finished(*this);
}

void BackendRequest::wait() {
  // With a progress thread, this call also enters the context, which releases the operations that
  // the thread completed.
  if (complete() && !context_.has_thread()) return;
  const RankContext::CallGuard guard(context_);
  context_.wait(*this);
}

void BackendRequest::check() {
  if (complete()) return;
  const RankContext::CallGuard guard(context_);
  context_.check(*this);
}

void BackendRequest::abandon() noexcept {
  if (complete()) return;
  try {
    context_.abandon(*group_, concat(operation_.label(),
                                     " was abandoned: an exception left the scope of its Work"));
  } catch (...) {
    context_.abandon(*group_, "an operation was abandoned");
  }
}

void BackendCommunicator::fail(std::string_view cause) noexcept {
  context().fail(FailureKind::error, context().failure_of_program(cause));
}

void BackendCommunicator::fail_with(const control::Failure& failure) noexcept {
  const auto kind = failure.timeout      ? FailureKind::timeout
                    : failure.by_program ? FailureKind::error
                                         : FailureKind::elsewhere;
  context().fail(kind, failure);
}

void BackendCommunicator::make_progress() {
  auto& context = this->context();
  const RankContext::CallGuard guard(context);
  context.poll();
  if (context.failed()) context.throw_failure(where("world"));
}

std::string BackendCommunicator::where(std::string_view label) const {
  return concat(label, " (", backend(), ") rank ", rank(), " of ", size());
}

}  // namespace lockstep::detail
