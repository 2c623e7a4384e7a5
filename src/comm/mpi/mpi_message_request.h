#pragma once

#include <vector>

#include "comm/messages/point_to_point_protocol.h"
#include "comm/mpi/mpi_request.h"

namespace lockstep::inline v0_2::mpi {

/// A send or recv on this rank.
class MessageRequest final : public MpiRequest {
 public:
  MessageRequest(MpiCommunicator& group, Operation&& operation);

  void begin() { protocol_.begin(); }
  void advance() override;
  std::vector<int> missing() const override;

 private:
  messages::PointToPointProtocol protocol_;
};

}  // namespace lockstep::mpi
