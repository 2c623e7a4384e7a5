#include "backend/shown_wait.h"

#include <exception>
#include <utility>

#include "comm/backend_communicator.h"
#include "comm/flight/flight_recorder.h"
#include "comm/rank_context.h"

namespace lockstep_torch {

using lockstep::detail::BackendRequest;

ShownWait::ShownWait(const BackendWork& work, std::shared_ptr<const BackendRequest> operation,
                     lockstep::detail::FlightRecorder& recorder)
    : work_(work),
      operation_(std::move(operation)),
      recorder_(recorder),
      warnings_(recorder.stall_warning()) {
  // Another thread may begin an operation that ends this wait.
  recorder_.begin_wait(operation_->recorded(), false);
}

ShownWait::~ShownWait() {
  if (!process_.in_child()) recorder_.end_wait();
}

void ShownWait::show(std::optional<ShownWait>& shown, const BackendWork& work) noexcept {
  if (shown && !shown->is_of(work)) return;
  const auto& operations = work.parts.operations;
  if (operations.empty()) return;
  try {
    const auto operation = std::dynamic_pointer_cast<const BackendRequest>(
        lockstep::detail::Request::of(operations.front()));
    auto* recorder = operation ? operation->context().recorder() : nullptr;
    if (recorder == nullptr || operation->recorded() == 0) return;
    if (!shown || shown->operation_ != operation) {
      shown.reset();
      shown.emplace(work, operation, *recorder);
    }
    recorder->poll_wait();
    recorder->set_missing(operations.front().missing());
    if (const auto time = shown->warnings_.due(Clock::now() - shown->begun_))
      recorder->warn_of_stall(*time / 2.0);
  } catch (const std::exception&) {
    // Of a world that has failed, which Progress raises.
  }
}

}  // namespace lockstep_torch
