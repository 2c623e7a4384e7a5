#include "comm/messages/send_protocol.h"

#include "comm/messages/transport.h"

// Note [How send() and recv() agree]
// The sender sends its terms (an offer) and its payload. The receiver answers an offer with a reply
// when a recv() expects the message, or when it keeps the message for a later recv(). The reply
// tells the sender that its message is being received, so the transport needs no synchronous sends.
// Each side compares the terms itself, after its own terms have been sent: both raise the same
// mismatch. A receiver takes one offer of a member at a time, and begins to receive the payload at
// once, because payloads arrive in the order of their offers.

namespace lockstep::inline v0_2::messages {

void SendProtocol::begin() {
  const int to = operation_.peer;
  const std::size_t bytes = operation_.count * size_of(operation_.dtype);
  reply_pending_ = true;
  transport_.receive(reinterpret_cast<std::byte*>(&reply_), sizeof reply_, to, Channel::replies,
                     [this](std::size_t) { reply_pending_ = false; });
  offer_pending_ = true;
  transport_.send(reinterpret_cast<const std::byte*>(&offer_), sizeof offer_, to, Channel::offers,
                  [this](std::size_t) { offer_pending_ = false; });
  if (bytes == 0) return;
  payload_pending_ = true;
  transport_.send(operation_.input, bytes, to, Channel::payloads,
                  [this](std::size_t) { payload_pending_ = false; });
}

void SendProtocol::advance() {
  if (complete_ || offer_pending_ || reply_pending_) return;
  const auto& group = transport_.group();
  if (reply_.terms != offer_) throw mismatch(group, group.rank, operation_.peer, reply_, offer_);
  complete_ = !payload_pending_;
}

Mismatch mismatch(const MessageGroup& group, int from, int to, const Reply& expected,
                  const detail::MessageTerms& got) {
  const int sender = group.world_rank(from);
  const int receiver = group.world_rank(to);
  return Mismatch(
      detail::describe_difference(expected.number, sender, receiver, expected.terms, got),
      {.rank = receiver});
}

}  // namespace lockstep::messages
