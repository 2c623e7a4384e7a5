#include <algorithm>
#include <array>
#include <cstring>

#include "comm/host/host_communicator.h"
#include "comm/operation.h"
#include "comm/waiting.h"
#include "core/text.h"
#include "kernels/copy.h"
#include "lockstep/error.h"

// Note [How a host collective runs]
// Every member announces the collective in its ring of announcements, and copies a short input into
// the eager slot beside it. When a member sees all announcements, it compares them. From them every
// member derives the same plan: the offset of each input, the path, and the number of steps. In a
// step every member does its own share of the work: it reduces its segment of an all_reduce and
// writes the result into all members' buffers, or it copies the parts for itself.
// Each member has two counters of steps, which count over all collectives of the group. `staged`
// counts the steps whose input it has copied into its chunks (staged path only), `finished` the
// steps whose share it has done. A collective is complete when all members have finished its last
// step. On the eager path it is complete at once, because a slot is not written again before all
// members have finished.
// No member does another's share, so a rank's polls affect no other rank. Sums are always in rank
// order.

namespace lockstep::inline v0_2::host {

CollectiveRequest::CollectiveRequest(HostCommunicator& group, Operation&& operation)
    : HostRequest(group, std::move(operation)),
      shape_(this->operation(), group.size(), group.rank()),
      steps_(group.block(), group.rank(), this->operation().sequence),
      eager_begin_(counted().has_own_counts() ? CountTable::bytes(group.size()) : 0) {}

bool CollectiveRequest::announce() { return steps_.announce(group().progress(), *this); }

void CollectiveRequest::advance() {
  if (steps_.advance(group().progress(), *this)) set_complete();
}

void CollectiveRequest::wake() { group().wake(); }

void CollectiveRequest::write_announcement(AnnouncementEntry& entry) {
  const int rank = group().rank();
  const auto& arena = group().context().arena();
  const auto offset = arena.offset_of(operation().input);
  detail::announce(entry.announcement, operation());
  entry.offset = offset;
  entry.output_offset = arena.offset_of(operation().output);
  // Depends on the longest input, so that members decide differently only if their memory differs,
  // or their counts.
  const std::size_t limit =
      offset == no_offset ? Block::eager_bytes : Block::eager_bytes_from_arena;
  entry.is_eager =
      eager_begin_ + shape_.longest_total() * size_of(operation().dtype) <= limit ? 1 : 0;
  std::byte* slot = group().block().slot(rank, operation().sequence);
  const bool copies = entry.is_eager != 0 && shape_.is_source(rank);
  const std::size_t bytes = copies ? shape_.total(rank) * size_of(operation().dtype) : 0;
  populate(slot, eager_begin_ + bytes, group().populated_slot(operation().sequence));
  if (eager_begin_ > 0) CountTable(slot, group().size()).write(counted());
  if (bytes > 0) std::memcpy(slot + eager_begin_, operation().input, bytes);
}

void CollectiveRequest::populate(std::byte* part, std::size_t bytes, std::size_t& populated) {
  if (bytes <= populated) return;
  auto& context = group().context();
  try {
    context.arena().populate(context.arena().offset_of(part), bytes);
  } catch (const CommError& shortage) {
    context.world().fail({.rank = context.rank(),
                          .text = detail::concat("rank ", context.world_rank(context.rank()), ": ",
                                                 shortage.what())});
    context.throw_failure(where());
  }
  populated = bytes;
}

/// The operation whose counts the members exchange, if one has counts of its own: this one, or that
/// which it is part of.
const Operation& CollectiveRequest::counted() const {
  return operation().has_own_counts() ? operation() : operation().announced();
}

CountTable CollectiveRequest::counts_of(int member) const {
  return {group().block().slot(member, operation().sequence), group().size()};
}

bool CollectiveRequest::compare_announcements() {
  std::array<const detail::Announcement*, max_ranks> announcements;
  const auto size = static_cast<std::size_t>(group().size());
  for (std::size_t member = 0; member < size; ++member) {
    announcements[member] =
        &group().block().entry(static_cast<int>(member), operation().sequence).announcement;
  }
  auto different = detail::difference(std::span(announcements).first(size), group().world_ranks());
  if (!different && counted().has_own_counts()) {
    const int own = group().rank();
    const auto theirs = [&](int member) {
      const auto counts = counts_of(member);
      return detail::SentAndExpected{.sent = counts.sent(own), .expected = counts.expected(own)};
    };
    different = detail::difference_of_counts(counted(), own, group().world_ranks(), theirs);
  }
  if (!different) return true;
  auto& context = group().context();
  context.world().fail(
      {.kind = Failure::Kind::mismatch,
       .rank = context.local_rank(different->rank),
       .text = detail::describe_difference(operation(), group().group_number(),
                                           group().world_ranks(), different->text)});
  return false;
}

CollectivePlan CollectiveRequest::plan() {
  bool all_eager = true;
  bool all_in_arena = true;
  for (int member = 0; member < group().size(); ++member) {
    if (!shape_.is_source(member)) continue;
    const auto& entry = group().block().entry(member, operation().sequence);
    all_eager = all_eager && entry.is_eager != 0;
    all_in_arena = all_in_arena && entry.offset != no_offset;
  }
  const Path path = all_eager ? Path::eager : all_in_arena ? Path::zero_copy : Path::staged;
  if (path != Path::eager) {
    for (int member = 0; member < group().size(); ++member) {
      const auto& entry = group().block().entry(member, operation().sequence);
      offsets_.push_back(entry.offset);
      outputs_.push_back(entry.output_offset);
    }
  }
  std::size_t longest = shape_.longest_part();
  if (operation().has_own_counts()) {
    for (int member = 0; member < group().size(); ++member) {
      longest = std::max<std::size_t>(longest, counts_of(member).longest());
    }
  }
  piece_elements_ = longest;
  std::uint64_t steps = 1;
  if (path == Path::staged) {
    // Every part's piece begins on a cache line.
    const std::size_t piece_bytes =
        Block::chunk_bytes / static_cast<std::size_t>(shape_.parts()) / cache_line * cache_line;
    piece_elements_ = piece_bytes / size_of(operation().dtype);
    steps = (longest + piece_elements_ - 1) / piece_elements_;
  }
  return {.path = path, .steps = steps};
}

detail::Range CollectiveRequest::range(int source, int part, std::uint64_t step) const {
  const std::size_t begin = step * piece_elements_;
  const std::size_t length = shape_.length(source, part);
  return {.begin = begin, .length = length > begin ? std::min(length - begin, piece_elements_) : 0};
}

std::byte* CollectiveRequest::piece(int source, int part, std::uint64_t step) const {
  const std::size_t element = size_of(operation().dtype);
  const std::size_t part_begin =
      operation().has_own_counts() ? counts_of(source).begin(part) : shape_.begin(part);
  const std::size_t in_source = (part_begin + step * piece_elements_) * element;
  // This rank reads its own input in place. Only an all_reduce and the root of a reduce write
  // there, where it is the output.
  if (source == group().rank()) return const_cast<std::byte*>(operation().input) + in_source;
  if (steps_.path() == Path::eager)
    return group().block().slot(source, operation().sequence) + eager_begin_ + in_source;
  const auto offset = offsets_[static_cast<std::size_t>(source)];
  if (offset != no_offset) return group().context().arena().at(offset) + in_source;
  return group().block().chunk(source, step) +
         static_cast<std::size_t>(part) * piece_elements_ * element;
}

/// This rank's segment of a piece that all members work on: whole cache lines; the last one may be
/// shorter.
detail::Range CollectiveRequest::my_segment(detail::Range piece) const {
  return detail::slice_of(piece.length, size_of(operation().dtype), group().rank(), group().size());
}

void CollectiveRequest::copy_others(std::byte* to, const std::byte* from,
                                    std::uint64_t step) const {
  const std::size_t element = size_of(operation().dtype);
  const detail::Range whole = range(group().rank(), 0, step);
  const detail::Range mine = my_segment(whole);
  const std::size_t after = mine.begin + mine.length;
  if (mine.begin > 0) std::memcpy(to, from, mine.begin * element);
  if (whole.length > after) {
    std::memcpy(to + after * element, from + after * element, (whole.length - after) * element);
  }
}

void CollectiveRequest::copy_in(std::uint64_t step) {
  const detail::WorkTimer timer(worked_);
  const int rank = group().rank();
  if (!shape_.is_source(rank) || offsets_[static_cast<std::size_t>(rank)] != no_offset) return;
  const std::size_t element = size_of(operation().dtype);
  std::byte* chunk = group().block().chunk(rank, step);
  populate(chunk, Block::chunk_bytes, group().populated_chunk(step));
  // This rank reduces its own segment in place; other members read only the rest.
  if (reduces_by_segments()) return copy_others(chunk, piece(rank, 0, step), step);
  for (int part = 0; part < shape_.parts(); ++part) {
    if (part == rank && shape_.parts() > 1) continue;
    const std::size_t bytes = range(rank, part, step).length * element;
    std::byte* to = chunk + static_cast<std::size_t>(part) * piece_elements_ * element;
    if (bytes > 0) std::memcpy(to, piece(rank, part, step), bytes);
  }
}

void CollectiveRequest::copy_out(std::uint64_t step) {
  const int rank = group().rank();
  if (!reduces_by_segments() || steps_.path() != Path::staged || !has_result(rank) ||
      offsets_[static_cast<std::size_t>(rank)] != no_offset) {
    return;
  }
  const detail::WorkTimer timer(worked_);
  copy_others(piece(rank, 0, step), group().block().chunk(rank, step), step);
}

void CollectiveRequest::work(std::uint64_t step) {
  if (steps_.path() == Path::eager) {
    move(step);  // takes less time than reading the clock
  } else {
    const detail::WorkTimer timer(worked_);
    move(step);
  }
}

void CollectiveRequest::move(std::uint64_t step) {
  const bool zero_copy = steps_.path() == Path::zero_copy;
  if (operation().is_reduction()) return reduce(step);
  if (operation().collective == Collective::broadcast && zero_copy && reaches(offsets_)) {
    return write_share_of_root(step);
  }
  if (operation().collective == Collective::all_gather && zero_copy && reaches(outputs_)) {
    return push(step);
  }
  pull_all(step);
}

void CollectiveRequest::pull_all(std::uint64_t step) {
  const int rank = group().rank();
  const std::size_t element = size_of(operation().dtype);
  const int part = shape_.parts() > 1 ? rank : 0;
  const bool is_broadcast = operation().collective == Collective::broadcast;
  const bool of_one = operation().is_from_root();
  const int end = of_one ? operation().peer + 1 : group().size();
  for (int source = of_one ? operation().peer : 0; source < end; ++source) {
    if (!shape_.sends(source, rank) || (is_broadcast && source == rank)) continue;
    const detail::Range piece_range = range(source, part, step);
    if (piece_range.length == 0) continue;
    // In an in-place operation, a rank's own part may already be at its destination. A long output
    // of a broadcast bypasses the caches, which takes 0.7 times as long.
    const std::size_t bytes = piece_range.length * element;
    kernels::copy_part(operation().output + (shape_.place(source) + piece_range.begin) * element,
                       piece(source, part, step), bytes,
                       is_broadcast ? shape_.length(source, part) * element : bytes);
  }
}

bool CollectiveRequest::reaches(std::span<const std::uint64_t> offsets) {
  return std::ranges::find(offsets, no_offset) == offsets.end();
}

void CollectiveRequest::push(std::uint64_t step) {
  const int rank = group().rank();
  const std::size_t element = size_of(operation().dtype);
  std::array<std::byte*, max_ranks> places;
  const auto size = static_cast<std::size_t>(group().size());
  for (std::size_t member = 0; member < size; ++member) {
    places[member] =
        group().context().arena().at(outputs_[member]) + operation().part_begin(rank) * element;
  }
  kernels::copy_bytes(std::span(places).first(size), piece(rank, 0, step),
                      range(rank, 0, step).length * element);
}

void CollectiveRequest::write_share_of_root(std::uint64_t step) {
  const int root = operation().peer;
  const std::size_t element = size_of(operation().dtype);
  const detail::Range mine = my_segment(range(root, 0, step));
  for (int member = 0; member < group().size(); ++member) {
    kernels::copy_bytes(piece(member, 0, step) + mine.begin * element,
                        piece(root, 0, step) + mine.begin * element, mine.length * element);
  }
}

void CollectiveRequest::reduce(std::uint64_t step) {
  const int rank = group().rank();
  const auto size = static_cast<std::size_t>(group().size());
  const std::size_t element = size_of(operation().dtype);
  const bool segments = reduces_by_segments();
  const bool eager = steps_.path() == Path::eager;
  const int part = segments ? 0 : rank;
  const detail::Range whole = range(rank, part, step);
  // On the eager path every member that has a result reduces all elements itself, which needs no
  // further synchronisation.
  const detail::Range share =
      segments && !eager ? my_segment(whole) : detail::Range{.length = whole.length};
  if (share.length == 0 || (segments && size == 1 && !operation().wire)) return;
  if (eager && !has_result(rank)) return;

  std::array<const std::byte*, max_ranks> inputs;
  std::array<std::byte*, max_ranks> outputs;
  for (std::size_t source = 0; source < size; ++source) {
    outputs[source] = piece(static_cast<int>(source), part, step) + share.begin * element;
    inputs[source] = outputs[source];
  }
  std::size_t output_count = size;
  if (!segments) {
    outputs[0] = operation().output + whole.begin * element;
    output_count = 1;
  } else if (operation().collective == Collective::reduce) {
    outputs[0] = outputs[static_cast<std::size_t>(operation().peer)];
    output_count = 1;
  } else if (eager) {
    // With two members, each reads only the other's slot. It also writes the result there, so that
    // the other member's next write to its slot is fast: a cache line that another core has only
    // read must first be invalidated.
    outputs[0] = operation().output;
    if (size == 2) outputs[1] = piece(1 - rank, part, step);
    output_count = size == 2 ? 2 : 1;
  }
  detail::reduce(operation(), std::span(inputs).first(size), std::span(outputs).first(output_count),
                 share.length);
}

std::vector<int> CollectiveRequest::missing() const {
  std::vector<int> ranks;
  for (int member = 0; member < group().size(); ++member) {
    if (member == group().rank() || !steps_.is_late(group().progress(), member)) continue;
    ranks.push_back(group().world_rank(member));
  }
  return ranks;
}

}  // namespace lockstep::host
