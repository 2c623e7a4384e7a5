#pragma once

#include <string>
#include <vector>

#include "comm/backend_communicator.h"
#include "comm/messages/collective_protocol.h"
#include "comm/messages/message_protocol.h"

namespace lockstep::inline v0_2::messages {

class MessageCommunicator;
using MessageRequest = detail::GroupRequest<MessageCommunicator>;

/// A collective on this rank.
class CollectiveRequest final : public MessageRequest {
 public:
  CollectiveRequest(MessageCommunicator& group, Operation&& operation);

  CollectiveProtocol& protocol() { return protocol_; }
  void advance() override;
  std::vector<int> missing() const override;

 private:
  CollectiveProtocol protocol_;
};

/// A send of this rank.
class SendRequest final : public MessageRequest {
 public:
  SendRequest(MessageCommunicator& group, Operation&& operation);

  void begin() { protocol_.begin(); }
  void advance() override;
  std::vector<int> missing() const override;

 private:
  SendProtocol protocol_;
};

/// A receive of this rank. The ReceiveProtocol of the group completes it.
class RecvRequest final : public MessageRequest {
 public:
  RecvRequest(MessageCommunicator& group, Operation&& operation);

  void begin();
  void advance() override;
  /// For a receive from any source: the ranks that may still send.
  std::vector<int> missing() const override;
  /// Names messages with other tags that this rank has got.
  std::string note() const override;

 private:
  bool withdraw() override;

  Receive receive_;
};

}  // namespace lockstep::messages
