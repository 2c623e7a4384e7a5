#include "comm/mpi/mpi_collective_request.h"

#include <algorithm>
#include <cstring>

#include "comm/ledger.h"
#include "comm/mpi/mpi_communicator.h"
#include "comm/reduction.h"
#include "kernels/reduce_rounded.h"
#include "lockstep/statistics.h"

// Note [How a collective over MPI runs]
// Every member sends every other an announcement (a Parcel), which includes its input if that is
// short. Once a member has all announcements, it compares them. Short inputs have then arrived, and
// each member computes its result from them. Long inputs follow in a Transfer, which derives from
// the operation alone which bytes each member sends to each other.
// Announcements are sent at once, whichever operations are pending. Transfers of one group begin in
// order: each begins when all messages of the one before have begun. The messages of a pair of
// ranks therefore need no numbers. Lockstep computes sums in the order of ranks. MPI only moves
// bytes, so the order in which messages arrive never changes a bit.

namespace lockstep::inline v0_2::mpi {
namespace {

using detail::Announcement;

/// With its announcement a parcel stays below what MPIs send without asking the receiver first.
std::size_t longest_payload(int members) {
  constexpr std::size_t most = 2 << 10;
  constexpr std::size_t to_all = 64 << 10;
  return std::min(most, to_all / static_cast<std::size_t>(members));
}

}  // namespace

CollectiveRequest::CollectiveRequest(MpiCommunicator& group, Operation&& operation)
    : MpiRequest(group, std::move(operation)), shape_(this->operation(), group.size()) {
  const std::size_t bytes = shape_.longest_part() * size_of(this->operation().travels_as());
  in_parcels_ = group.size() == 1 || bytes <= longest_payload(group.size());
  received_.resize(static_cast<std::size_t>(group.size()));
  absent_ = group.size() - 1;
}

std::size_t CollectiveRequest::parcel_bytes(int members) {
  return sizeof(Announcement) + longest_payload(members);
}

/// Bytes of the own input that are sent to the member with the announcement.
std::size_t CollectiveRequest::parcel_payload(int member) const {
  const int rank = group().rank();
  if (!in_parcels_ || !shape_.is_source(rank)) return 0;
  if (operation().collective == Collective::gather && member != operation().peer) return 0;
  return shape_.length(rank, member) * size_of(operation().travels_as());
}

/// Writes the own input, or the member's part of it, in the dtype in which it is sent.
void CollectiveRequest::fill(std::byte* payload, std::size_t bytes, int member) const {
  if (operation().wire) {
    const auto& wire = *operation().wire;
    kernels::round_to_halves(wire, operation().reduce, static_cast<std::size_t>(group().size()),
                             operation().input, payload, bytes / size_of(wire.dtype));
    return;
  }
  const std::size_t begin = shape_.begin(member) * size_of(operation().dtype);
  std::memcpy(payload, operation().input + begin, bytes);
}

void CollectiveRequest::announce() {
  const int rank = group().rank();
  const bool parted = shape_.parts() > 1;
  const bool to_root = operation().collective == Collective::gather;
  for (int step = 1; step < group().size(); ++step) {
    const int member = (rank + step) % group().size();
    if (sent_.empty() || parted || to_root) {
      const std::size_t payload = parcel_payload(member);
      auto& parcel = sent_.emplace_back(sizeof(Announcement) + payload);
      detail::announce(*reinterpret_cast<Announcement*>(parcel.data()), operation());
      if (payload > 0) fill(parcel.data() + sizeof(Announcement), payload, member);
    }
    ++sending_;
    const auto& parcel = sent_.back();
    group().send(parcel.data(), parcel.size(), member, Channel::announcements,
                 [this](std::size_t) { --sending_; });
  }
}

void CollectiveRequest::meet() {
  if (agreed_) return;
  for (int member = 0; member < group().size() && absent_ > 0; ++member) {
    auto& parcel = received_[static_cast<std::size_t>(member)];
    auto& waiting = group().announced(member);
    if (!parcel.empty() || waiting.empty()) continue;
    parcel = std::move(waiting.front());
    waiting.pop_front();
    --absent_;
  }
  if (absent_ > 0 || !agree()) return;
  agreed_ = true;
  if (in_parcels_) finish_from_parcels();
}

bool CollectiveRequest::agree() {
  Announcement own{};
  detail::announce(own, operation());
  std::vector<const Announcement*> announcements;
  for (int member = 0; member < group().size(); ++member) {
    const auto& parcel = received_[static_cast<std::size_t>(member)];
    announcements.push_back(
        member == group().rank() ? &own : reinterpret_cast<const Announcement*>(parcel.data()));
  }
  const auto different = detail::difference(announcements, group().members(), operation().sequence);
  if (different) group().context().fail_within({.text = different->text});
  return !different;
}

bool CollectiveRequest::lets_next_begin() const {
  if (complete()) return true;
  return agreed_ && (in_parcels_ || (transfer_ != nullptr && transfer_->begun()));
}

void CollectiveRequest::advance() {
  if (!agreed_ || complete()) return;
  if (!in_parcels_) {
    if (transfer_ == nullptr) transfer_ = make_transfer(group(), operation());
    transfer_->advance();
    if (!transfer_->over()) return;
  }
  if (sending_ > 0) return;
  if (transfer_ != nullptr) worked_ = transfer_->worked();
  transfer_.reset();
  set_complete();
}

const std::byte* CollectiveRequest::from_parcel(int member) const {
  if (member != group().rank()) {
    return received_[static_cast<std::size_t>(member)].data() + sizeof(Announcement);
  }
  return operation().input + shape_.begin(group().rank()) * size_of(operation().dtype);
}

void CollectiveRequest::finish_from_parcels() {
  const int rank = group().rank();
  const std::size_t element = size_of(operation().dtype);
  const auto pull = [&](int source, std::size_t begin) {
    const std::size_t bytes = shape_.length(source, rank) * element;
    // In place, a rank's own part may already lie where it belongs.
    if (bytes > 0) {
      std::memmove(operation().output + begin * element, from_parcel(source), bytes);
    }
  };
  switch (operation().collective) {
    case Collective::all_reduce:
    case Collective::reduce_scatter: {
      const std::size_t count = shape_.length(rank, rank);
      if (count == 0) return;
      if (operation().wire) return finish_halves();
      std::vector<const std::byte*> inputs;
      for (int member = 0; member < group().size(); ++member) inputs.push_back(from_parcel(member));
      std::byte* output = operation().output;
      const detail::Working working(worked_);
      detail::reduce(operation(), inputs, {&output, 1}, count);
      return;
    }
    case Collective::broadcast:
    case Collective::scatter:
      if (operation().collective == Collective::scatter || rank != operation().peer) {
        pull(operation().peer, 0);
      }
      return;
    case Collective::gather:
      if (rank != operation().peer) return;
      [[fallthrough]];
    case Collective::all_gather:
    case Collective::all_to_all:
      for (int source = 0; source < group().size(); ++source) {
        pull(source, operation().part_begin(source));
      }
      return;
    case Collective::barrier:
    case Collective::send:
    case Collective::recv:
      return;
  }
}

void CollectiveRequest::finish_halves() {
  const detail::Working working(worked_);
  const auto& wire = *operation().wire;
  const std::size_t count = operation().count;
  std::vector<std::byte> own(count * size_of(wire.dtype));
  fill(own.data(), own.size(), group().rank());
  std::vector<const std::byte*> inputs;
  for (int member = 0; member < group().size(); ++member) {
    inputs.push_back(member == group().rank() ? own.data() : from_parcel(member));
  }
  std::byte* result = own.data();
  kernels::reduce_halves(wire, operation().reduce, inputs, {&result, 1}, count);
  kernels::widen_halves(wire, result, operation().output, count);
}

std::vector<int> CollectiveRequest::missing() const {
  std::vector<int> ranks;
  if (transfer_ != nullptr) {
    for (const int member : transfer_->partners()) ranks.push_back(group().world_rank(member));
    return ranks;
  }
  if (agreed_ && !in_parcels_) return group().holding_up();
  for (int member = 0; member < group().size(); ++member) {
    const bool here =
        member == group().rank() ||
        (absent_ == 0 ? sending_ == 0 : !received_[static_cast<std::size_t>(member)].empty());
    if (!here) ranks.push_back(group().world_rank(member));
  }
  return ranks;
}

}  // namespace lockstep::mpi
