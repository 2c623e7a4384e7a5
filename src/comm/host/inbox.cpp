#include "comm/host/inbox.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "comm/host/host_communicator.h"
#include "comm/host/message_steps.h"
#include "core/text.h"

// Note [How receives are matched]
// The receiver reads the mailbox of a member only while it has an open receive from that member, or
// from any. It takes every message that it finds there. The message completes the first open
// receive of its source and tag. If there is none, the receiver keeps a copy, so that the sender
// can go on to the message that a receive waits for. A new receive looks at the copies first.
// Messages of one pair are therefore matched in the order in which they were sent.
// The mailboxes are read from another member on after each message, so that no member can keep the
// messages of the others from a receive of any source.

namespace lockstep::inline v0_2::host {

Inbox::Inbox(HostCommunicator& group)
    : group_(group), open_(static_cast<std::size_t>(group.size())) {}

Mailbox& Inbox::mailbox(int source) const { return group_.block().mailbox(source, group_.rank()); }

Inbox::Receives::iterator Inbox::match(int source, std::uint32_t tag) {
  return std::ranges::find_if(receives_,
                              [&](const auto& receive) { return receive->accepts(source, tag); });
}

void Inbox::add(const std::shared_ptr<RecvRequest>& receive) {
  const auto early = std::ranges::find_if(early_, [&](const Early& message) {
    return receive->accepts(message.source, message.terms.tag);
  });
  if (early != early_.end()) {
    if (!receive->copy(early->source, early->terms, early->data.get())) return;
    const int source = early->source;
    early_.erase(early);
    return receive->finish(source);
  }
  receives_.push_back(receive);
  const int peer = receive->operation().peer;
  if (peer == any_source) {
    ++from_any_;
  } else if (open_[static_cast<std::size_t>(peer)]++ == 0) {
    sources_.push_back(peer);
  }
}

void Inbox::remove(Receives::iterator receive) {
  const int peer = (*receive)->operation().peer;
  receives_.erase(receive);
  if (peer == any_source) {
    --from_any_;
  } else if (--open_[static_cast<std::size_t>(peer)] == 0) {
    std::erase(sources_, peer);
  }
}

bool Inbox::withdraw(const RecvRequest& receive) {
  const auto found = std::ranges::find(receives_, &receive, &std::shared_ptr<RecvRequest>::get);
  if (found == receives_.end()) return false;
  remove(found);
  return true;
}

void Inbox::advance() {
  if (from_any_ == 0) {
    // From the last on, because take_from() may erase the entry that was read.
    for (auto i = sources_.size(); i-- > 0;) take_from(sources_[i]);
    return;
  }
  const int size = group_.size();
  for (int i = 0, first = first_; i < size; ++i) {
    const int source = (first + i) % size;
    if (open(source) > 0) take_from(source);
  }
}

void Inbox::take_from(int source) {
  auto& mailbox = this->mailbox(source);
  if (!has_message(mailbox)) return;
  // Other ranks read from the mailbox whom this rank waits for.
  group_.context().end_published_wait();
  const detail::MessageTerms terms{
      .dtype = static_cast<DType>(mailbox.dtype), .count = mailbox.count, .tag = mailbox.tag};
  const bool has_data = terms.count > 0;
  const std::byte* data = has_data ? group_.context().arena().at(mailbox.offset) : nullptr;
  const auto found = match(source, terms.tag);
  const auto receive = found == receives_.end() ? nullptr : *found;
  if (!(receive != nullptr ? receive->copy(source, terms, data) : keep(source, terms, data))) {
    return;
  }
  if (receive != nullptr) remove(found);
  take_message(mailbox, [&] { group_.wake(source); });
  first_ = source + 1;
  if (receive != nullptr) receive->finish(source);
}

bool Inbox::keep(int source, const detail::MessageTerms& terms, const std::byte* data) {
  const std::size_t bytes = terms.count * size_of(terms.dtype);
  std::unique_ptr<std::byte[]> copy(new (std::nothrow) std::byte[bytes]);
  if (copy == nullptr) {
    group_.context().world().fail(
        {.rank = group_.context().rank(),
         .text = detail::concat(
             group_.where("recv"), ": no memory for the copy of a message of ", bytes,
             " bytes with tag ", terms.tag, " from rank ", group_.world_rank(source),
             " that no recv expects yet; receive messages in the order in which they are sent")});
    return false;
  }
  if (bytes > 0) std::memcpy(copy.get(), data, bytes);
  early_.push_back({.source = source, .terms = terms, .data = std::move(copy)});
  return true;
}

void Inbox::publish() const {
  for (int source = 0; source < group_.size(); ++source) {
    set_open_recvs(mailbox(source), open(source));
  }
}

std::optional<PendingMessage> Inbox::pending(int source) const {
  const auto early = std::ranges::find(early_, source, &Early::source);
  if (early != early_.end()) {
    const auto& [dtype, count, tag] = early->terms;
    return PendingMessage{.count = count, .dtype = dtype, .tag = tag};
  }
  const auto& mailbox = this->mailbox(source);
  if (!has_message(mailbox)) return std::nullopt;
  const bool is_matched = std::ranges::any_of(
      receives_, [&](const auto& receive) { return receive->accepts(source, mailbox.tag); });
  if (is_matched) return std::nullopt;
  return PendingMessage{
      .count = mailbox.count, .dtype = static_cast<DType>(mailbox.dtype), .tag = mailbox.tag};
}

std::string Inbox::unmatched_for(const RecvRequest& receive) const {
  constexpr std::size_t most = 4;
  std::string text;
  std::size_t count = 0;
  for (const auto& message : early_) {
    if (!receive.accepts(message.source)) continue;
    if (++count > most) continue;
    text += detail::concat(count == 1 ? "" : ", ", "tag ", message.terms.tag, " from rank ",
                           group_.world_rank(message.source));
  }
  if (count == 0) return text;
  if (count > most) text += detail::concat(" and ", count - most, " more");
  return detail::concat(", expected tag ", receive.operation().tag, ", got ", text);
}

void Inbox::clear() {
  receives_.clear();
  sources_.clear();
  std::ranges::fill(open_, 0);
  from_any_ = 0;
}

}  // namespace lockstep::host
