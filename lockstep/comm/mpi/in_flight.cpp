#include "lockstep/comm/mpi/in_flight.h"

#include "lockstep/comm/mpi/mpi_communicator.h"
#include "lockstep/core/text.h"

namespace lockstep::mpi {

InFlight::InFlight(MpiCommunicator& group, Operation&& operation)
    : group_(group.shared_from_this()), operation_(std::move(operation)) {}

InFlight::~InFlight() = default;

std::string InFlight::where() const { return group_->where(operation_.label()); }

bool InFlight::test() {
  if (complete_) return true;
  const Endpoint::Use use(group_->endpoint());
  group_->endpoint().poll();
  if (!complete_ && group_->endpoint().failed()) group_->endpoint().throw_failure(where());
  return complete_;
}

void InFlight::wait() {
  if (complete_) return;
  const Endpoint::Use use(group_->endpoint());
  group_->endpoint().wait(*this);
}

void InFlight::abandon() noexcept {
  if (complete_) return;
  try {
    group_->fail(detail::concat(operation_.label(),
                                " was abandoned: an exception left the scope of its Work"));
  } catch (...) {
    group_->fail("an operation was abandoned");
  }
}

}  // namespace lockstep::mpi
