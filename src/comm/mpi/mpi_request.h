#pragma once

#include <memory>
#include <vector>

#include "comm/backend_communicator.h"
#include "comm/messages/collective_protocol.h"
#include "comm/messages/point_to_point_protocol.h"

namespace lockstep::inline v0_2::mpi {

class MpiCommunicator;
using MpiRequest = detail::GroupRequest<MpiCommunicator>;

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

/// A send or recv on this rank.
class MessageRequest final : public MpiRequest {
 public:
  /// offer: as of PointToPointProtocol.
  MessageRequest(MpiCommunicator& group, Operation&& operation,
                 std::shared_ptr<messages::TermsOfPeer> offer);

  void begin() { protocol_.begin(); }
  void advance() override;
  std::vector<int> missing() const override;

 private:
  messages::PointToPointProtocol protocol_;
};

}  // namespace lockstep::mpi
