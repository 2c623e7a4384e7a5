#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "adapter/c10d_request.h"
#include "comm/announcement.h"
#include "comm/reduction.h"
#include "comm/shape.h"
#include "comm/working.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::adapter {
namespace {

using detail::Announcement;
using detail::Range;

class CollectiveRequest final : public C10dRequest {
 public:
  CollectiveRequest(std::shared_ptr<const Channel> channel, Operation&& operation)
      : C10dRequest(std::move(channel), std::move(operation)),
        rank_(this->channel().rank()),
        size_(this->channel().size()) {}

 private:
  using Slices = std::function<Range(int member)>;

  void fly() override;
  void agree();
  void move_parts();
  void broadcast();
  void all_reduce();
  /// output = the sum of all members' elements of this one's slice.
  void sum(const Slices& slice, std::byte* output);
  /// Every member's slice of the output goes to all others but the one that has it.
  void share(const Slices& slice, int owner_of_all);

  int rank_;
  int size_;
};

void CollectiveRequest::fly() {
  agree();
  switch (operation().collective) {
    case Collective::barrier:
      return;
    case Collective::all_reduce:
      return all_reduce();
    case Collective::broadcast:
      return broadcast();
    case Collective::reduce_scatter:
      return sum(
          [&](int member) {
            return Range{.begin = operation().part_begin(member),
                         .length = operation().part(member)};
          },
          operation().output);
    default:
      return move_parts();
  }
}

void CollectiveRequest::agree() {
  std::vector<Announcement> announcements(static_cast<std::size_t>(size_));
  auto& own = announcements[static_cast<std::size_t>(rank_)];
  detail::announce(own, operation());
  std::vector<Message> messages;
  std::vector<const Announcement*> all;
  for (int member = 0; member < size_; ++member) {
    auto& place = announcements[static_cast<std::size_t>(member)];
    all.push_back(&place);
    if (member == rank_) continue;
    messages.push_back(channel().from(member, Kind::announcements,
                                      reinterpret_cast<std::byte*>(&place), sizeof place));
  }
  for (int step = 1; step < size_; ++step) {
    messages.push_back(channel().to((rank_ + step) % size_, Kind::announcements,
                                    reinterpret_cast<const std::byte*>(&own), sizeof own));
  }
  exchange(messages);
  const auto different = detail::difference(all, channel().members(), operation().sequence);
  if (different) throw CommError(different->text);
}

void CollectiveRequest::move_parts() {
  const detail::Shape shape(operation(), size_);
  const bool parted = shape.parts() > 1;
  const bool gathers = operation().collective == Collective::gather;
  const bool scatters = operation().collective == Collective::scatter;
  const auto receives_from = [&](int member) {
    return shape.is_source(member) && (!gathers || rank_ == operation().peer);
  };
  const auto sends_to = [&](int member) {
    return shape.is_source(rank_) && (!gathers || member == operation().peer);
  };
  const auto place_of = [&](int source) {
    return operation().output + (scatters ? 0 : operation().part_begin(source) * element());
  };
  const auto part_for = [&](int member) {
    return operation().input + (parted ? shape.begin(member) * element() : 0);
  };
  std::vector<Message> messages;
  for (int step = 1; step < size_; ++step) {
    const int source = (rank_ + size_ - step) % size_;
    if (!receives_from(source)) continue;
    messages.push_back(channel().from(source, Kind::parts, place_of(source),
                                      shape.length(source, rank_) * element()));
  }
  for (int step = 1; step < size_; ++step) {
    const int target = (rank_ + step) % size_;
    if (!sends_to(target)) continue;
    messages.push_back(channel().to(target, Kind::parts, part_for(target),
                                    shape.length(rank_, target) * element()));
  }
  if (receives_from(rank_)) {
    // In place, a rank's own part may already lie where it belongs.
    const std::size_t bytes = shape.length(rank_, rank_) * element();
    if (bytes > 0) std::memmove(place_of(rank_), part_for(rank_), bytes);
  }
  exchange(messages);
}

void CollectiveRequest::broadcast() {
  const int root = operation().peer;
  const auto slice = [&](int member) {
    return detail::slice_of(operation().count, element(), member, size_);
  };
  std::vector<Message> messages;
  for (int member = 0; member < size_; ++member) {
    const auto [begin, length] = slice(member);
    std::byte* data = operation().output + begin * element();
    if (member == root || (rank_ != root && rank_ != member)) continue;
    messages.push_back(rank_ == root ? channel().to(member, Kind::parts, data, length * element())
                                     : channel().from(root, Kind::parts, data, length * element()));
  }
  exchange(messages);
  share(slice, root);
}

void CollectiveRequest::all_reduce() {
  constexpr std::size_t most_staged = 64 << 20;
  const std::size_t longest = most_staged / element();
  for (std::size_t begin = 0; begin < operation().count; begin += longest) {
    const std::size_t length = std::min(longest, operation().count - begin);
    const auto slice = [&](int member) {
      auto range = detail::slice_of(length, element(), member, size_);
      range.begin += begin;
      return range;
    };
    sum(slice, operation().output + slice(rank_).begin * element());
    share(slice, -1);
  }
}

void CollectiveRequest::sum(const Slices& slice, std::byte* output) {
  const auto [begin, length] = slice(rank_);
  const std::size_t bytes = length * element();
  const auto staged =
      std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(size_) * bytes);
  std::vector<const std::byte*> inputs(static_cast<std::size_t>(size_));
  std::vector<Message> messages;
  for (int member = 0; member < size_; ++member) {
    auto* place = staged.get() + static_cast<std::size_t>(member) * bytes;
    inputs[static_cast<std::size_t>(member)] =
        member == rank_ ? operation().input + begin * element() : place;
    if (member != rank_) messages.push_back(channel().from(member, Kind::parts, place, bytes));
  }
  for (int step = 1; step < size_; ++step) {
    const int owner = (rank_ + step) % size_;
    const auto theirs = slice(owner);
    messages.push_back(channel().to(owner, Kind::parts,
                                    operation().input + theirs.begin * element(),
                                    theirs.length * element()));
  }
  exchange(messages);
  if (length == 0) return;
  const detail::Working working(work());
  detail::reduce(operation(), inputs, {&output, 1}, length);
}

void CollectiveRequest::share(const Slices& slice, int owner_of_all) {
  const auto part = [&](int member) {
    return operation().output + slice(member).begin * element();
  };
  std::vector<Message> messages;
  for (int step = 1; step < size_; ++step) {
    const int owner = (rank_ + size_ - step) % size_;
    if (rank_ == owner_of_all) continue;
    messages.push_back(
        channel().from(owner, Kind::results, part(owner), slice(owner).length * element()));
  }
  for (int step = 1; step < size_; ++step) {
    const int member = (rank_ + step) % size_;
    if (member == owner_of_all) continue;
    messages.push_back(
        channel().to(member, Kind::results, part(rank_), slice(rank_).length * element()));
  }
  exchange(messages);
}

}  // namespace

std::unique_ptr<C10dRequest> make_collective(std::shared_ptr<const Channel> channel,
                                             Operation&& operation) {
  return std::make_unique<CollectiveRequest>(std::move(channel), std::move(operation));
}

}  // namespace lockstep::adapter
