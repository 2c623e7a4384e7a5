#include "comm/messages/message_protocol.h"

#include <cstring>
#include <new>
#include <utility>

#include "comm/messages/message_communicator.h"
#include "lockstep/error.h"

// Note [How send() and recv() agree]
// The sender sends its terms (an offer) and its payload. The receiver answers an offer with a reply
// when a recv() expects the message, or when it keeps the message for a later recv(). The reply
// tells the sender that its message is being received, so the transport needs no synchronous sends.
// Each side compares the terms itself, after its own terms have been sent: both raise the same
// mismatch. A receiver takes one offer of a member at a time, and begins to receive the payload at
// once, because payloads arrive in the order of their offers.

namespace lockstep::inline v0_2::messages {
namespace {

/// The error if a message does not have the terms that its receiver expects. from and to are
/// members of the group.
Mismatch mismatch(const MessageGroup& group, int from, int to, const Reply& expected,
                  const detail::MessageTerms& got) {
  const int sender = group.world_rank(from);
  const int receiver = group.world_rank(to);
  return Mismatch(
      detail::describe_difference(expected.number, sender, receiver, expected.terms, got),
      {.rank = receiver});
}

}  // namespace

SendRequest::SendRequest(MessageCommunicator& group, Operation&& operation)
    : MessageRequest(group, std::move(operation)), offer_(detail::terms_of(this->operation())) {}

void SendRequest::begin() {
  const auto& ranks = group().message_group();
  const int to = operation().peer;
  const std::size_t bytes = offer_.bytes();
  ranks.receive(reinterpret_cast<std::byte*>(&reply_), sizeof reply_, to, Channel::replies,
                [this](std::size_t) { --pending_terms_; });
  ranks.send(reinterpret_cast<const std::byte*>(&offer_), sizeof offer_, to, Channel::offers,
             [this](std::size_t) { --pending_terms_; });
  if (bytes == 0) return;
  payload_pending_ = true;
  ranks.send(operation().input, bytes, to, Channel::payloads,
             [this](std::size_t) { payload_pending_ = false; });
}

void SendRequest::advance() {
  if (complete() || pending_terms_ > 0) return;
  if (reply_.terms != offer_) {
    throw mismatch(group().message_group(), group().rank(), operation().peer, reply_, offer_);
  }
  if (!payload_pending_) set_complete();
}

std::vector<int> SendRequest::missing() const { return {group().world_rank(operation().peer)}; }

void ReceiveProtocol::Message::finish() {
  if (transfers > 0 || receive == nullptr) return;
  if (data != nullptr) std::memcpy(receive->operation().output, data.get(), terms.bytes());
  receive->finish();
}

ReceiveProtocol::ReceiveProtocol(const MessageGroup& group)
    : group_(group), matching_(group.size()), offers_(group.members.size()) {}

void ReceiveProtocol::add(RecvRequest& receive) {
  const auto& operation = receive.operation();
  const auto early = matching_.take_message(operation);
  if (early == nullptr) {
    matching_.add(&receive);
    return advance();
  }
  receive.match(early->source);
  const Reply expected{.terms = detail::terms_of(operation), .number = operation.sequence};
  if (expected.terms != early->terms) {
    throw mismatch(group_, early->source, group_.rank, expected, early->terms);
  }
  early->receive = &receive;
  early->finish();
}

void ReceiveProtocol::advance() {
  // Once the reply has been sent, so that the sender raises the same mismatch.
  if (wrong_ != nullptr && wrong_->transfers == 0) {
    throw mismatch(group_, wrong_->source, group_.rank, wrong_->reply, wrong_->terms);
  }
  matching_.for_each_source([this](int source) { return take_from(source); });
}

void ReceiveProtocol::receive_offer(int source) {
  auto& offer = offers_[static_cast<std::size_t>(source)];
  if (offer != nullptr) return;
  offer = std::make_shared<Message>();
  offer->source = source;
  group_.receive(reinterpret_cast<std::byte*>(&offer->terms), sizeof offer->terms, source,
                 Channel::offers, [offer](std::size_t) { offer->offered = true; });
}

bool ReceiveProtocol::take_from(int source) {
  receive_offer(source);
  auto& offer = offers_[static_cast<std::size_t>(source)];
  if (!offer->offered) return false;
  take(std::exchange(offer, nullptr));
  if (matching_.open(source) > 0) receive_offer(source);
  return true;
}

void ReceiveProtocol::take(const MessagePointer& message) {
  const int source = message->source;
  const auto& terms = message->terms;
  message->receive = matching_.take_receive(source, terms.tag);
  message->reply.terms = terms;
  std::byte* output = nullptr;
  const std::size_t bytes = terms.bytes();
  if (auto* const receive = message->receive) {
    const auto& operation = receive->operation();
    receive->match(source);
    message->reply = {.terms = detail::terms_of(operation), .number = operation.sequence};
    output = operation.output;
  } else if (bytes > 0) {
    message->data.reset(new (std::nothrow) std::byte[bytes]);
    if (message->data == nullptr) {
      throw CommError(detail::no_memory_for_early(bytes, terms.tag, group_.world_rank(source)));
    }
    output = message->data.get();
  }
  const auto end_transfer = [message](std::size_t) {
    --message->transfers;
    message->finish();
  };
  ++message->transfers;
  group_.send(reinterpret_cast<const std::byte*>(&message->reply), sizeof message->reply, source,
              Channel::replies, end_transfer);
  if (message->reply.terms != terms) {
    message->receive = nullptr;
    wrong_ = message;
    return;
  }
  if (message->receive == nullptr) matching_.keep(message);
  if (bytes == 0) return;
  ++message->transfers;
  group_.receive(output, bytes, source, Channel::payloads, end_transfer);
}

}  // namespace lockstep::messages
