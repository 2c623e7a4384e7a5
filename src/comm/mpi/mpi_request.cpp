#include "comm/mpi/mpi_request.h"

#include <utility>

#include "comm/mpi/mpi_communicator.h"

namespace lockstep::inline v0_2::mpi {

CollectiveRequest::CollectiveRequest(MpiCommunicator& group, Operation&& operation)
    : MpiRequest(group, std::move(operation)), protocol_(group.transport(), this->operation()) {}

void CollectiveRequest::advance() {
  protocol_.advance();
  if (complete() || !protocol_.complete()) return;
  worked_ = protocol_.worked();
  set_complete();
}

std::vector<int> CollectiveRequest::missing() const {
  if (protocol_.is_queued()) return group().first_awaited();
  std::vector<int> ranks;
  for (const int member : protocol_.missing()) ranks.push_back(group().world_rank(member));
  return ranks;
}

MessageRequest::MessageRequest(MpiCommunicator& group, Operation&& operation,
                               std::shared_ptr<messages::TermsOfPeer> offer)
    : MpiRequest(group, std::move(operation)),
      protocol_(group.transport(), this->operation(), group.received(this->operation().peer),
                std::move(offer)) {}

void MessageRequest::advance() {
  protocol_.advance();
  if (!complete() && protocol_.complete()) set_complete();
}

std::vector<int> MessageRequest::missing() const { return {group().world_rank(operation().peer)}; }

}  // namespace lockstep::mpi
