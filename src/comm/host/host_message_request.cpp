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
      steps_(mailbox_, this->operation().sequence),
      copy_(std::move(copy)) {}

void MessageRequest::count_as_begun() {
  if (operation().collective == Collective::send) {
    steps_.begin_send();
  } else {
    steps_.begin_recv();
  }
}

void MessageRequest::advance() {
  const auto wake = [this] { group().wake(operation().peer); };
  const bool sends = operation().collective == Collective::send;
  const bool over =
      sends ? steps_.advance_send([this](Mailbox& mailbox) { offer(mailbox); }, wake)
            : steps_.advance_recv([this](const Mailbox& mailbox) { return take(mailbox); }, wake);
  if (!over) return;
  copy_.reset();
  set_complete();
}

void MessageRequest::offer(Mailbox& mailbox) const {
  const std::byte* from = copy_ != nullptr ? copy_.get() : operation().input;
  mailbox.offset = group().context().arena().offset_of(from);
  mailbox.count = operation().count;
  mailbox.tag = operation().tag;
  mailbox.dtype = static_cast<std::uint8_t>(operation().dtype);
}

bool MessageRequest::take(const Mailbox& mailbox) {
  if (!compare_terms()) return false;
  const std::size_t bytes = operation().count * size_of(operation().dtype);
  if (bytes > 0) {
    std::memcpy(operation().output, group().context().arena().at(mailbox.offset), bytes);
  }
  return true;
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
       .text = detail::describe_difference(operation().sequence, from, to, expected, got)});
  return false;
}

std::vector<int> MessageRequest::missing() const {
  return {group().members()[static_cast<std::size_t>(operation().peer)]};
}

}  // namespace lockstep::host
