#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/announcement.h"
#include "comm/backend_communicator.h"
#include "comm/message_matching.h"
#include "comm/messages/network.h"
#include "comm/operation.h"

namespace lockstep::inline v0_2::messages {

class MessageCommunicator;
using MessageRequest = detail::GroupRequest<MessageCommunicator>;

/// The answer of a receiver to an offer: the terms that it expected, and the number of its recv. If
/// it keeps the message for a later recv, they are the terms of the offer.
struct Reply {
  detail::MessageTerms terms;
  std::uint64_t number;
};

/// A send of this rank. Note [How send() and recv() agree] is in message_protocol.cpp.
class SendRequest final : public MessageRequest {
 public:
  SendRequest(MessageCommunicator& group, Operation&& operation);

  /// Sends the terms and the payload, and begins to receive the reply.
  void begin();
  /// Compares the terms with those of the reply.
  /// Throws: Mismatch if they differ.
  void advance() override;
  std::vector<int> missing() const override;

 private:
  detail::MessageTerms offer_;
  Reply reply_{};
  int pending_terms_ = 2;  ///< the offer and the reply, while they are in transit
  bool payload_pending_ = false;
};

using RecvRequest = detail::ReceiveRequest<MessageCommunicator>;

/// The receives of one rank in a group over a transport. Note [How receives are matched] is in
/// message_matching.h, Note [How send() and recv() agree] in message_protocol.cpp.
class ReceiveProtocol {
 public:
  explicit ReceiveProtocol(const MessageGroup& group);
  ReceiveProtocol(const ReceiveProtocol&) = delete;
  ReceiveProtocol& operator=(const ReceiveProtocol&) = delete;

  /// Begins a receive.
  /// Throws: Mismatch if a message came before with other terms.
  void add(RecvRequest& receive);
  /// Takes the messages whose offers have arrived, and begins to receive other offers.
  /// Throws: Mismatch if the terms of a message differ from those of its receive.
  void advance();
  auto& matching() { return matching_; }

 private:
  /// A message of a member. The transport keeps it while it receives or sends for it.
  struct Message : detail::TakenMessage {
    bool offered = false;            ///< whether its terms have arrived
    RecvRequest* receive = nullptr;  ///< null while no receive expects it
    Reply reply{};
    int transfers = 0;  ///< of the payload and the reply that are in progress

    /// Ends the receive, if there is one and all transfers are complete.
    void finish();
  };
  using MessagePointer = std::shared_ptr<Message>;

  /// Begins to receive the next offer of a member, unless it has begun.
  void receive_offer(int source);
  /// Takes the next message of a member, if its offer has arrived. Returns whether it did.
  bool take_from(int source);
  void take(const MessagePointer& message);

  const MessageGroup& group_;
  detail::MessageMatching<RecvRequest*, MessagePointer> matching_;
  std::vector<MessagePointer> offers_;  ///< the next one of each member; null for none
  MessagePointer wrong_;                ///< a message that no receive can take
};

}  // namespace lockstep::messages
