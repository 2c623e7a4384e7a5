#pragma once

#include <vector>

#include "comm/messages/collective_protocol.h"
#include "comm/mpi/mpi_request.h"

namespace lockstep::inline v0_2::mpi {

/// A collective on this rank.
class CollectiveRequest final : public MpiRequest {
 public:
  CollectiveRequest(MpiCommunicator& group, Operation&& operation);

  messages::CollectiveProtocol& protocol() { return protocol_; }
  void advance() override;
  std::vector<int> missing() const override;

 private:
  messages::CollectiveProtocol protocol_;
};

}  // namespace lockstep::mpi
