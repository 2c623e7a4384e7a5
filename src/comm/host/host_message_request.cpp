#include <cstring>
#include <new>
#include <utility>

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

Inbox::Inbox(HostCommunicator& group) : group_(group), matching_(group.size()) {}

Mailbox& Inbox::mailbox(int source) const { return group_.block().mailbox(source, group_.rank()); }

int Inbox::world_rank(int member) const { return group_.world_rank(member); }

void Inbox::add(const std::shared_ptr<RecvRequest>& receive) {
  const auto early = matching_.take_message(receive->operation());
  if (early == nullptr) return matching_.add(receive);
  if (receive->copy(early->source, early->terms, early->data.get())) receive->finish(early->source);
}

void Inbox::advance() {
  matching_.for_each_source([this](int source) { return take_from(source); });
}

bool Inbox::take_from(int source) {
  auto& mailbox = this->mailbox(source);
  if (!has_message(mailbox)) return false;
  // Other ranks read from the mailbox whom this rank waits for.
  group_.context().end_published_wait();
  const detail::MessageTerms terms{
      .dtype = static_cast<DType>(mailbox.dtype), .count = mailbox.count, .tag = mailbox.tag};
  const bool has_data = terms.count > 0;
  const std::byte* data = has_data ? group_.context().arena().at(mailbox.offset) : nullptr;
  const auto receive = matching_.take_receive(source, terms.tag);
  if (!(receive != nullptr ? receive->copy(source, terms, data) : keep(source, terms, data))) {
    return false;
  }
  take_message(mailbox, [&] { group_.wake(source); });
  if (receive != nullptr) receive->finish(source);
  return true;
}

bool Inbox::keep(int source, const detail::MessageTerms& terms, const std::byte* data) {
  const std::size_t bytes = terms.count * size_of(terms.dtype);
  std::unique_ptr<std::byte[]> copy(new (std::nothrow) std::byte[bytes]);
  if (copy == nullptr) {
    group_.context().world().fail(
        {.rank = group_.context().rank(),
         .text =
             detail::concat(group_.where("recv"), ": ",
                            detail::no_memory_for_early(bytes, terms.tag, world_rank(source)))});
    return false;
  }
  if (bytes > 0) std::memcpy(copy.get(), data, bytes);
  matching_.keep(std::make_unique<detail::TakenMessage>(
      detail::TakenMessage{.source = source, .terms = terms, .data = std::move(copy)}));
  return true;
}

void Inbox::publish() const {
  for (int source = 0; source < group_.size(); ++source) {
    set_open_recvs(mailbox(source), matching_.open(source));
  }
}

}  // namespace lockstep::host
