#include "comm/host/host_message_request.h"

#include <cstring>

#include "comm/announcement.h"
#include "comm/host/host_communicator.h"
#include "core/text.h"

namespace lockstep::inline v0_2::host {
namespace {

Mailbox& mailbox_of(const HostCommunicator& group, const Operation& operation) {
  return operation.collective == Collective::send
             ? group.block().mailbox(group.rank(), operation.peer)
             : group.block().mailbox(operation.peer, group.rank());
}

}  // namespace

std::shared_ptr<std::byte> MessageRequest::copy_for(HostRankContext& context,
                                                    const Operation& operation) {
  const std::size_t bytes = operation.count * size_of(operation.dtype);
  if (operation.collective != Collective::send || bytes == 0 ||
      context.arena().offset_of(operation.input) != no_offset) {
    return nullptr;
  }
  auto copy = context.allocate(bytes);
  std::memcpy(copy.get(), operation.input, bytes);
  return copy;
}

MessageRequest::MessageRequest(HostCommunicator& group, Operation&& operation,
                               std::shared_ptr<std::byte> copy)
    : HostRequest(group, std::move(operation)),
      mailbox_(mailbox_of(group, this->operation())),
      number_(this->operation().sequence),
      copy_(std::move(copy)) {}

void MessageRequest::count_as_begun() {
  const bool sends = operation().collective == Collective::send;
  auto& begun = sends ? mailbox_.sends_begun : mailbox_.recvs_begun;
  begun.store(number_, std::memory_order_release);
}

void MessageRequest::advance() {
  if (operation().collective == Collective::send) {
    advance_send();
  } else {
    advance_recv();
  }
}

void MessageRequest::advance_send() {
  const auto taken = mailbox_.taken.load(std::memory_order_acquire);
  if (!offered_) {
    if (taken + 1 != number_) return;  // the mailbox still has the previous message
    const std::byte* from = copy_ != nullptr ? copy_.get() : operation().input;
    mailbox_.offset = group().context().arena().offset_of(from);
    mailbox_.count = operation().count;
    mailbox_.tag = operation().tag;
    mailbox_.dtype = static_cast<std::uint8_t>(operation().dtype);
    mailbox_.sent.store(number_, std::memory_order_release);
    offered_ = true;
    group().wake(operation().peer);
    return;
  }
  if (taken >= number_) {
    copy_.reset();
    set_complete();
  }
}

void MessageRequest::advance_recv() {
  if (mailbox_.sent.load(std::memory_order_acquire) != number_ || !compare_terms()) return;
  const std::size_t bytes = operation().count * size_of(operation().dtype);
  if (bytes > 0) {
    std::memcpy(operation().output, group().context().arena().at(mailbox_.offset), bytes);
  }
  mailbox_.taken.store(number_, std::memory_order_release);
  group().wake(operation().peer);
  set_complete();
}

bool MessageRequest::compare_terms() {
  const detail::MessageTerms got{
      .dtype = static_cast<DType>(mailbox_.dtype), .count = mailbox_.count, .tag = mailbox_.tag};
  const auto expected = detail::terms_of(operation());
  if (got == expected) return true;
  const auto members = group().world_ranks();
  const int from = members[static_cast<std::size_t>(operation().peer)];
  const int to = members[static_cast<std::size_t>(group().rank())];
  group().context().world().fail(
      {.kind = Failure::Kind::mismatch,
       .rank = group().context().rank(),
       .text = detail::describe_difference(number_, from, to, expected, got)});
  return false;
}

std::vector<int> MessageRequest::missing() const {
  return {group().members()[static_cast<std::size_t>(operation().peer)]};
}

}  // namespace lockstep::host
