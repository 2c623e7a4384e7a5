#include "comm/backend_communicator.h"

#include "comm/rank_context.h"
#include "core/text.h"

namespace lockstep::inline v0_2::detail {

void BackendCommunicator::fail(std::string_view cause) noexcept {
  context().fail(FailureKind::error, context().failure_of_program(cause));
}

void BackendCommunicator::fail_with(const control::Failure& failure) noexcept {
  const auto kind = failure.timeout      ? FailureKind::timeout
                    : failure.by_program ? FailureKind::error
                                         : FailureKind::elsewhere;
  context().fail(kind, failure);
}

void BackendCommunicator::look() {
  auto& context = this->context();
  const RankContext::Use use(context);
  context.poll();
  if (context.failed()) context.throw_failure(where("world"));
}

std::string BackendCommunicator::where(std::string_view label) const {
  return concat(label, " (", backend(), ") rank ", rank(), " of ", size());
}

}  // namespace lockstep::detail
