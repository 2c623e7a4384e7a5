#include "comm/mpi/mpi_message_request.h"

#include "comm/message_terms.h"
#include "comm/mpi/mpi_communicator.h"
#include "core/text.h"

namespace lockstep::inline v0_2::mpi {
MessageRequest::MessageRequest(MpiCommunicator& group, Operation&& operation)
    : MpiRequest(group, std::move(operation)) {}

std::size_t MessageRequest::bytes() const { return operation().count * size_of(operation().dtype); }

void MessageRequest::begin() {
  const int peer = operation().peer;
  const auto ended = [this](std::size_t) { --under_way_; };
  auto* offer = reinterpret_cast<std::byte*>(&offer_);
  ++under_way_;
  if (operation().collective == Collective::recv) {
    group().receive(offer, sizeof offer_, peer, Channel::offers, ended);
    return;
  }
  offer_ = {.count = operation().count, .tag = operation().tag, .dtype = operation().dtype};
  // Complete once the receiver has asked for it: for its payload, or for the offer if that is all.
  if (bytes() == 0) {
    group().send_synchronously(offer, sizeof offer_, peer, Channel::offers, ended);
  } else {
    group().send(offer, sizeof offer_, peer, Channel::offers, ended);
    ++under_way_;
    group().send_synchronously(operation().input, bytes(), peer, Channel::payloads, ended);
  }
  payload_begun_ = true;
}

void MessageRequest::advance() {
  if (under_way_ > 0 || complete()) return;
  if (payload_begun_) {
    set_complete();
    return;
  }
  // Payloads of a pair come in the order of their offers.
  auto& received = group().received(operation().peer);
  if (received + 1 != operation().sequence || !agree()) return;
  ++received;
  payload_begun_ = true;
  if (bytes() == 0) {
    set_complete();
    return;
  }
  ++under_way_;
  group().receive(operation().output, bytes(), operation().peer, Channel::payloads,
                  [this](std::size_t) { --under_way_; });
}

bool MessageRequest::agree() {
  const detail::MessageTerms got{.dtype = offer_.dtype, .count = offer_.count, .tag = offer_.tag};
  const auto expected = detail::terms_of(operation());
  if (got == expected) return true;
  group().context().fail_within({.text = detail::describe_difference(
                                     operation().sequence, group().world_rank(operation().peer),
                                     group().world_rank(group().rank()), expected, got)});
  return false;
}

std::vector<int> MessageRequest::missing() const { return {group().world_rank(operation().peer)}; }

}  // namespace lockstep::mpi
