#include "comm/host/inbox.h"

#include <cstring>
#include <new>
#include <utility>

#include "comm/host/host_communicator.h"
#include "comm/host/message_steps.h"
#include "core/text.h"

namespace lockstep::inline v0_2::host {

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
