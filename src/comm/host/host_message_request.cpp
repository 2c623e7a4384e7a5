#include <cstring>
#include <new>
#include <utility>

#include "comm/host/host_communicator.h"
#include "core/text.h"

namespace lockstep::inline v0_2::host {

SendRequest::SendRequest(HostCommunicator& group, Operation&& operation,
                         std::shared_ptr<std::byte> copy)
    : HostRequest(group, std::move(operation)),
      steps_(group.block().mailbox(group.rank(), this->operation().peer),
             this->operation().sequence),
      copy_(std::move(copy)) {}

void SendRequest::advance() {
  const auto offer = [this](Mailbox& mailbox) {
    const std::byte* from = copy_ != nullptr ? copy_.get() : operation().input;
    const auto terms = detail::terms_of(operation());
    mailbox.offset = group().context().arena().offset_of(from);
    mailbox.count = terms.count;
    mailbox.tag = terms.tag;
    mailbox.dtype = static_cast<std::uint8_t>(terms.dtype);
    mailbox.is_announcement = terms.is_announcement ? 1 : 0;
  };
  if (!steps_.advance(offer, [this] { group().wake(operation().peer); })) return;
  copy_.reset();
  set_complete();
}

std::vector<int> SendRequest::missing() const { return {group().world_rank(operation().peer)}; }

bool RecvRequest::copy(int source, const detail::MessageTerms& terms, const std::byte* data) {
  const auto expected = detail::terms_of(operation());
  if (terms != expected) {
    const auto ranks = group().world_ranks();
    group().context().world().fail(
        {.kind = Failure::Kind::mismatch,
         .rank = group().context().rank(),
         .text = detail::describe_difference(
             operation().sequence, ranks[static_cast<std::size_t>(source)],
             ranks[static_cast<std::size_t>(group().rank())], expected, terms)});
    return false;
  }
  if (terms.bytes() > 0) std::memcpy(operation().output, data, terms.bytes());
  match(source);
  return true;
}

void HostCommunicator::take_messages() {
  receives_.for_each_source([this](int source) { return take_from(source); });
}

bool HostCommunicator::take_from(int source) {
  auto& mailbox = mailbox_from(source);
  if (!has_message(mailbox)) return false;
  // Other ranks read from the mailbox whom this rank waits for.
  context_->end_published_wait();
  const detail::MessageTerms terms{.dtype = static_cast<DType>(mailbox.dtype),
                                   .count = mailbox.count,
                                   .tag = mailbox.tag,
                                   .is_announcement = mailbox.is_announcement != 0};
  const bool has_data = terms.bytes() > 0;
  const std::byte* data = has_data ? context_->arena().at(mailbox.offset) : nullptr;
  const auto receive = receives_.take_receive(source, terms.tag);
  if (!(receive != nullptr ? receive->copy(source, terms, data) : keep(source, terms, data))) {
    return false;
  }
  take_message(mailbox, [&] { wake(source); });
  if (receive != nullptr) receive->finish();
  return true;
}

bool HostCommunicator::keep(int source, const detail::MessageTerms& terms, const std::byte* data) {
  const std::size_t bytes = terms.bytes();
  std::unique_ptr<std::byte[]> copy(new (std::nothrow) std::byte[bytes]);
  if (copy == nullptr) {
    const auto why = detail::no_memory_for_early(bytes, terms.tag, world_rank(source));
    context_->world().fail(
        {.rank = context_->rank(), .text = detail::concat(where("recv"), ": ", why)});
    return false;
  }
  if (bytes > 0) std::memcpy(copy.get(), data, bytes);
  receives_.keep(std::make_unique<detail::TakenMessage>(
      detail::TakenMessage{.source = source, .terms = terms, .data = std::move(copy)}));
  return true;
}

void HostCommunicator::publish_receives() const {
  for (int source = 0; source < size(); ++source) {
    set_open_recvs(mailbox_from(source), receives_.open(source));
  }
}

}  // namespace lockstep::host
