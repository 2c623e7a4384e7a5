#include "comm/messages/collective_protocol.h"

#include <cstring>
#include <utility>

#include "comm/messages/message_communicator.h"
#include "comm/messages/network.h"
#include "comm/operation.h"
#include "comm/waiting.h"
#include "kernels/reduce.h"

// Note [How a collective over messages runs]
// Every member sends every other member an announcement message, which includes the sender's input
// if that is short (eager). When a member has received all announcements, it compares them. Short
// inputs have then arrived, and each member computes its result from them. Long inputs follow in a
// Transfer, which derives from the operation alone which bytes each member sends to each other.
// Announcements are sent at once, also while other operations are pending. Transfers of one group
// begin in order: each begins when all messages of the previous one have begun. Messages between
// two ranks therefore need no numbers. Lockstep computes the sums itself. Their order does not
// depend on the order in which messages arrive, so the bits of a result do not, either.
// A member compares only after its own announcements have been sent. Another member that waits for
// one of them then finds the same mismatch itself, even if a failure cancels unsent messages.
// A later collective's announcements may be sent earlier, if they are shorter. It is compared after
// the earlier one all the same, so that all members find the first mismatch.

namespace lockstep::inline v0_2::messages {

using detail::Announcement;

CollectiveRequest::CollectiveRequest(MessageCommunicator& group, Operation&& operation)
    : MessageRequest(group, std::move(operation)),
      group_(group.message_group()),
      shape_(this->operation(), group.size(), group.rank()),
      pending_(2 * (group.size() - 1)) {
  const std::size_t bytes = shape_.longest_part() * size_of(this->operation().wire_dtype());
  // Members with counts of their own do not know which inputs of the others are short.
  const bool is_short = bytes <= group_.eager_bytes && !this->operation().has_own_counts();
  eager_ = group_.size() == 1 || is_short;
}

std::size_t CollectiveRequest::message_bytes() const {
  // Announcements are read in place, so each message is aligned like one.
  constexpr std::size_t alignment = alignof(Announcement);
  return (sizeof(Announcement) + group_.eager_bytes + alignment - 1) / alignment * alignment;
}

std::byte* CollectiveRequest::message_of(int member) const {
  return received_.get() + static_cast<std::size_t>(member) * message_bytes();
}

/// Writes this rank's input, or the member's part of it, in the wire dtype.
void CollectiveRequest::write_payload(std::byte* payload, std::size_t bytes, int member) const {
  if (operation().wire) {
    const auto& wire = *operation().wire;
    kernels::round_to_halves(wire, operation().reduce, static_cast<std::size_t>(group_.size()),
                             operation().input, payload, bytes / size_of(wire.dtype));
    return;
  }
  const std::size_t begin = shape_.begin(member) * size_of(operation().dtype);
  std::memcpy(payload, operation().input + begin, bytes);
}

void CollectiveRequest::begin() {
  const int rank = group_.rank;
  const int size = group_.size();
  if (size == 1) return;
  received_ =
      std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(size) * message_bytes());
  pending_with_.resize(static_cast<std::size_t>(size), 2);
  const auto end_with = [this](int member) {
    return [this, member](std::size_t) {
      --pending_with_[static_cast<std::size_t>(member)];
      --pending_;
    };
  };
  for (int step = 1; step < size; ++step) {
    const int member = (rank + size - step) % size;
    group_.receive(message_of(member), message_bytes(), member, Channel::announcements,
                   end_with(member));
  }
  const bool parted = shape_.parts() > 1;
  const bool to_root = operation().is_to_root();
  const auto& announced = operation().announced();
  for (int step = 1; step < size; ++step) {
    const int member = (rank + step) % size;
    if (sent_.empty() || parted || to_root || announced.has_own_counts()) {
      const bool has_payload = eager_ && shape_.sends(rank, member);
      const std::size_t payload =
          has_payload ? shape_.length(rank, member) * size_of(operation().wire_dtype()) : 0;
      auto& message = sent_.emplace_back(sizeof(Announcement) + payload);
      auto& announcement = *reinterpret_cast<Announcement*>(message.data());
      detail::announce(announcement, operation());
      if (announced.has_own_counts()) {
        announcement.sent = announced.part(member);
        announcement.expected = announced.received(member);
      }
      if (payload > 0) write_payload(message.data() + sizeof(Announcement), payload, member);
    }
    const auto& message = sent_.back();
    group_.send(message.data(), message.size(), member, Channel::announcements, end_with(member));
  }
}

void CollectiveRequest::compare() {
  if (compared_ || pending_ > 0) return;
  compare_announcements();
  compared_ = true;
  if (eager_) finish_eager();
  received_.reset();
  sent_.clear();
}

void CollectiveRequest::compare_announcements() const {
  Announcement own{};
  detail::announce(own, operation());
  std::vector<const Announcement*> announcements;
  for (int member = 0; member < group_.size(); ++member) {
    announcements.push_back(
        member == group_.rank ? &own : reinterpret_cast<const Announcement*>(message_of(member)));
  }
  auto different = detail::difference(announcements, group_.members);
  const auto& announced = operation().announced();
  if (!different && announced.has_own_counts()) {
    const auto theirs = [&](int member) {
      const auto& of_member = *announcements[static_cast<std::size_t>(member)];
      return detail::SentAndExpected{.sent = of_member.sent, .expected = of_member.expected};
    };
    different = detail::difference_of_counts(announced, group_.rank, group_.members, theirs);
  }
  if (!different) return;
  throw Mismatch(detail::describe_difference(operation(), group_.shown_number(), group_.members,
                                             different->text),
                 {.rank = different->rank});
}

bool CollectiveRequest::next_may_begin() const {
  if (complete()) return true;
  return compared_ && (eager_ || (transfer_ != nullptr && transfer_->begun()));
}

void CollectiveRequest::advance() {
  if (!compared_ || complete()) return;
  if (!eager_) {
    if (transfer_ == nullptr) transfer_ = make_transfer(group_, operation());
    transfer_->advance();
    if (!transfer_->finished()) return;
    worked_ = transfer_->worked();
    transfer_.reset();
  }
  set_complete();
}

const std::byte* CollectiveRequest::payload_of(int member) const {
  if (member != group_.rank) return message_of(member) + sizeof(Announcement);
  return operation().input + shape_.begin(group_.rank) * size_of(operation().dtype);
}

void CollectiveRequest::finish_eager() {
  const int rank = group_.rank;
  if (operation().is_reduction()) {
    if (!operation().is_to_root() || rank == operation().peer) reduce_eager();
    return;
  }
  const bool is_broadcast = operation().collective == Collective::broadcast;
  for (int source = 0; source < group_.size(); ++source) {
    const std::size_t bytes = shape_.length(source, rank) * size_of(operation().dtype);
    if (!shape_.sends(source, rank) || bytes == 0 || (is_broadcast && source == rank)) continue;
    // In an in-place operation, a rank's own part may already be at its destination.
    std::memmove(operation().output + shape_.place(source) * size_of(operation().dtype),
                 payload_of(source), bytes);
  }
}

void CollectiveRequest::reduce_eager() {
  const int rank = group_.rank;
  const std::size_t count = shape_.length(rank, rank);
  if (count == 0) return;
  const detail::WorkTimer timer(worked_);
  std::vector<const std::byte*> inputs;
  for (int member = 0; member < group_.size(); ++member) inputs.push_back(payload_of(member));
  std::byte* const output = operation().output;
  if (!operation().wire) return detail::reduce(operation(), inputs, {&output, 1}, count);
  const auto& wire = *operation().wire;
  std::vector<std::byte> own(count * size_of(wire.dtype));
  std::byte* const result = own.data();
  write_payload(result, own.size(), rank);
  inputs[static_cast<std::size_t>(rank)] = result;
  kernels::reduce_halves(wire, operation().reduce, inputs, {&result, 1}, count);
  kernels::widen_halves(wire, result, output, count);
}

std::vector<int> CollectiveRequest::missing() const {
  if (compared_ && !eager_ && transfer_ == nullptr) return group().first_missing();
  if (transfer_ != nullptr) return detail::at_ranks(group_.members, transfer_->partners());
  std::vector<int> members;
  if (compared_) return members;
  for (int member = 0; member < group_.size(); ++member) {
    const bool is_waited_for = pending_ == 0 || pending_with_[static_cast<std::size_t>(member)] > 0;
    if (member != group_.rank && is_waited_for) members.push_back(group_.world_rank(member));
  }
  return members;
}

}  // namespace lockstep::messages
