#include "comm/messages/point_to_point_protocol.h"

#include <utility>

#include "comm/messages/transport.h"

// Note [How send() and recv() agree]
// The sender sends its terms (an offer) and its payload. The receiver sends its terms (a reply)
// when recv() begins, and receives the payload if the offer has the same terms. The reply tells the
// sender that its message is being received, so the transport needs no synchronous sends. Each side
// compares the terms itself, after its own terms have been sent: both raise the same mismatch.
// Messages between two ranks are accepted in the order of their numbers, because payloads arrive in
// the order of their offers.

namespace lockstep::inline v0_2::messages {

namespace {

std::shared_ptr<TermsOfPeer> receive_terms(const GroupTransport& transport, int peer,
                                           Channel channel) {
  auto theirs = std::make_shared<TermsOfPeer>();
  transport.receive(reinterpret_cast<std::byte*>(&theirs->terms), sizeof theirs->terms, peer,
                    channel, [theirs](std::size_t) { theirs->received = true; });
  return theirs;
}

}  // namespace

std::shared_ptr<TermsOfPeer> receive_offer(const GroupTransport& transport, int peer) {
  return receive_terms(transport, peer, Channel::offers);
}

PointToPointProtocol::PointToPointProtocol(GroupTransport transport, const Operation& operation,
                                           std::uint64_t& received,
                                           std::shared_ptr<TermsOfPeer> offer)
    : transport_(transport),
      operation_(operation),
      received_(received),
      own_(detail::terms_of(operation)),
      theirs_(std::move(offer)) {}

std::size_t PointToPointProtocol::bytes() const {
  return operation_.count * size_of(operation_.dtype);
}

void PointToPointProtocol::begin() {
  const int peer = operation_.peer;
  if (!theirs_) {
    theirs_ = receive_terms(transport_, peer, sends() ? Channel::replies : Channel::offers);
  }
  own_terms_pending_ = true;
  transport_.send(reinterpret_cast<const std::byte*>(&own_), sizeof own_, peer,
                  sends() ? Channel::offers : Channel::replies,
                  [this](std::size_t) { own_terms_pending_ = false; });
  if (!sends() || bytes() == 0) return;
  ++payloads_pending_;
  transport_.send(operation_.input, bytes(), peer, Channel::payloads,
                  [this](std::size_t) { --payloads_pending_; });
}

void PointToPointProtocol::advance() {
  if (complete_ || own_terms_pending_ || !theirs_->received) return;
  if (!compared_) {
    if (!sends() && received_ + 1 != operation_.sequence) return;
    compare_terms();
    compared_ = true;
    if (!sends()) {
      ++received_;
      if (bytes() > 0) {
        ++payloads_pending_;
        transport_.receive(operation_.output, bytes(), operation_.peer, Channel::payloads,
                           [this](std::size_t) { --payloads_pending_; });
      }
    }
  }
  complete_ = payloads_pending_ == 0;
}

void PointToPointProtocol::compare_terms() const {
  const auto& got = sends() ? own_ : theirs_->terms;
  const auto& expected = sends() ? theirs_->terms : own_;
  if (got == expected) return;
  const auto& group = transport_.group();
  const int here = group.world_rank(group.rank);
  const int there = group.world_rank(operation_.peer);
  const int from = sends() ? here : there;
  const int to = sends() ? there : here;
  throw Mismatch(detail::describe_difference(operation_.sequence, from, to, expected, got),
                 {.rank = to});
}

}  // namespace lockstep::messages
