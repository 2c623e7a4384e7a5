#include <array>
#include <memory>

#include "adapter/c10d_request.h"
#include "comm/message_terms.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::adapter {
namespace {

using detail::MessageTerms;

class MessageRequest final : public C10dRequest {
 public:
  using C10dRequest::C10dRequest;

 private:
  void fly() override {
    const bool sends = operation().collective == Collective::send;
    const int peer = operation().peer;
    auto own = detail::terms_of(operation());
    MessageTerms theirs{};
    auto* told = reinterpret_cast<std::byte*>(&own);
    auto* heard = reinterpret_cast<std::byte*>(&theirs);
    const auto offer = sends ? channel().to(peer, Kind::offers, told, sizeof own)
                             : channel().from(peer, Kind::offers, heard, sizeof theirs);
    const auto reply = sends ? channel().from(peer, Kind::replies, heard, sizeof theirs)
                             : channel().to(peer, Kind::replies, told, sizeof own);
    exchange({&offer, 1});
    exchange({&reply, 1});
    agree(sends ? theirs : own, sends ? own : theirs);
    const std::size_t bytes = operation().count * element();
    const auto payload = sends ? channel().to(peer, Kind::payloads, operation().input, bytes)
                               : channel().from(peer, Kind::payloads, operation().output, bytes);
    exchange({&payload, 1});
  }

  void agree(const MessageTerms& expected, const MessageTerms& got) const {
    if (expected == got) return;
    const int here = channel().world_rank(channel().rank());
    const int there = channel().world_rank(operation().peer);
    const bool sends = operation().collective == Collective::send;
    throw CommError(detail::describe_difference(operation().sequence, sends ? here : there,
                                                sends ? there : here, expected, got));
  }
};

}  // namespace

std::unique_ptr<C10dRequest> make_message(std::shared_ptr<const Channel> channel,
                                          Operation&& operation) {
  return std::make_unique<MessageRequest>(std::move(channel), std::move(operation));
}

}  // namespace lockstep::adapter
