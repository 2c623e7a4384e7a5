#include "lockstep/comm/mpi/message_flight.h"

#include "lockstep/comm/mpi/mpi_communicator.h"
#include "lockstep/core/text.h"

namespace lockstep::mpi {
namespace {

std::string describe(DType dtype, std::uint64_t count, std::uint32_t tag) {
  return detail::concat(count, " elements of ", name(dtype), " with tag ", tag);
}

}  // namespace

MessageFlight::MessageFlight(MpiCommunicator& group, Operation&& operation)
    : InFlight(group, std::move(operation)) {}

std::size_t MessageFlight::bytes() const { return operation().count * size_of(operation().dtype); }

void MessageFlight::begin() {
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

void MessageFlight::advance() {
  if (under_way_ > 0) return;
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

bool MessageFlight::agree() {
  if (offer_.dtype == operation().dtype && offer_.count == operation().count &&
      offer_.tag == operation().tag) {
    return true;
  }
  group().endpoint().fail(
      {.text = detail::concat(
           "message #", operation().sequence, " from rank ", group().world_rank(operation().peer),
           " to rank ", group().world_rank(group().rank()), " differs: the receiver expected ",
           describe(operation().dtype, operation().count, operation().tag), ", got ",
           describe(offer_.dtype, offer_.count, offer_.tag))});
  return false;
}

std::vector<int> MessageFlight::missing() const { return {group().world_rank(operation().peer)}; }

}  // namespace lockstep::mpi
