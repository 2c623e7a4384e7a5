#include <cstring>

#include "comm/host/host_communicator.h"
#include "comm/host/host_request.h"
#include "core/text.h"

namespace lockstep::inline v0_2::host {

std::shared_ptr<std::byte> SendRequest::copy_for(HostRankContext& context,
                                                 const Operation& operation) {
  const std::size_t bytes = operation.count * size_of(operation.dtype);
  if (bytes == 0 || context.arena().offset_of(operation.input) != no_offset) return nullptr;
  auto copy = context.allocate(bytes);
  std::memcpy(copy.get(), operation.input, bytes);
  return copy;
}

SendRequest::SendRequest(HostCommunicator& group, Operation&& operation,
                         std::shared_ptr<std::byte> copy)
    : HostRequest(group, std::move(operation)),
      steps_(group.block().mailbox(group.rank(), this->operation().peer),
             this->operation().sequence),
      copy_(std::move(copy)) {}

void SendRequest::advance() {
  if (!steps_.advance([this](Mailbox& mailbox) { offer(mailbox); },
                      [this] { group().wake(operation().peer); })) {
    return;
  }
  copy_.reset();
  set_complete();
}

void SendRequest::offer(Mailbox& mailbox) const {
  const std::byte* from = copy_ != nullptr ? copy_.get() : operation().input;
  mailbox.offset = group().context().arena().offset_of(from);
  mailbox.count = operation().count;
  mailbox.tag = operation().tag;
  mailbox.dtype = static_cast<std::uint8_t>(operation().dtype);
}

std::vector<int> SendRequest::missing() const { return {group().world_rank(operation().peer)}; }

void RecvRequest::advance() { group().inbox().advance(); }

std::vector<int> RecvRequest::missing() const {
  if (operation().peer != any_source) return {group().world_rank(operation().peer)};
  const auto& context = group().context();
  const auto& world = context.world();
  auto ranks = detail::possible_senders(group().members(), group().rank(), [&](int rank) {
    return world.left(rank) && world.end_text(rank).empty();
  });
  for (int& rank : ranks) rank = context.world_rank(rank);
  return ranks;
}

std::string RecvRequest::note() const { return group().inbox().describe_early(*this); }

bool RecvRequest::withdraw() { return group().inbox().withdraw(*this); }

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
  const std::size_t bytes = operation().count * size_of(operation().dtype);
  if (bytes > 0) std::memcpy(operation().output, data, bytes);
  return true;
}

void RecvRequest::finish(int source) {
  set_source(source);
  set_complete();
}

}  // namespace lockstep::host
