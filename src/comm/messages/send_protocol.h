#pragma once

#include <cstdint>

#include "comm/announcement.h"
#include "comm/messages/transport.h"
#include "comm/operation.h"

namespace lockstep::inline v0_2::messages {

/// The answer of a receiver to an offer: the terms that it expected, and the number of its recv. If
/// it keeps the message for a later recv, they are the terms of the offer.
struct Reply {
  detail::MessageTerms terms;
  std::uint64_t number;
};

/// A send on this rank. Note [How send() and recv() agree] is in send_protocol.cpp. Refers to the
/// operation; must not be copied or moved.
class SendProtocol {
 public:
  SendProtocol(GroupTransport transport, const Operation& operation)
      : transport_(transport), operation_(operation), offer_(detail::terms_of(operation)) {}
  SendProtocol(const SendProtocol&) = delete;
  SendProtocol& operator=(const SendProtocol&) = delete;

  /// Sends the terms and the payload, and begins to receive the reply.
  void begin();
  /// Compares the terms with those of the reply.
  /// Throws: Mismatch if they differ.
  void advance();
  bool complete() const { return complete_; }

 private:
  GroupTransport transport_;
  const Operation& operation_;
  detail::MessageTerms offer_;
  Reply reply_{};
  bool offer_pending_ = false;
  bool payload_pending_ = false;
  bool reply_pending_ = false;
  bool complete_ = false;
};

/// The error of SendProtocol and ReceiveProtocol if a message does not have the terms that its
/// receiver expects. from and to are members of the group.
Mismatch mismatch(const MessageGroup& group, int from, int to, const Reply& expected,
                  const detail::MessageTerms& got);

}  // namespace lockstep::messages
