#include "comm/host/host_collective_request.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "comm/host/host_communicator.h"
#include "comm/operation.h"
#include "comm/reduction.h"
#include "comm/waiting.h"
#include "core/text.h"
#include "kernels/copy.h"

// Note [How a host collective runs]
// Every member announces the collective in its ring of posts, and puts a short input into a slot
// beside it. Once a member sees all announcements, it compares them. From them every member derives
// the same plan: the place of each input, the path, and the number of steps. In a step every member
// does its own share of the work. That is its segment of an all_reduce, written into all members'
// buffers, or the parts that it copies to itself.
// Each member has two counters, which count the steps of the whole group. `arrived` says that its
// input of the step can be read (staged path only), `worked` that its share is done. A collective
// is over when all members have worked its last step. On the slots path it is over at once, since a
// slot is not written again before all have worked.
// No member works for another, so ranks may poll at any time. The order of a sum is always the
// order of ranks.

namespace lockstep::inline v0_2::host {

CollectiveRequest::CollectiveRequest(HostCommunicator& group, Operation&& operation)
    : HostRequest(group, std::move(operation)), shape_(this->operation(), group.size()) {}

bool CollectiveRequest::post() {
  const std::uint64_t sequence = operation().sequence;
  auto& progress = group().progress();
  if (sequence >= Block::ring) {
    // The place still belongs to an earlier collective until all members are through with it.
    if (progress.planned + Block::ring <= sequence) return false;
    const auto over_at = progress.over_at[sequence % Block::ring];
    if (!all_reached(progress.worked, &Block::worked, over_at)) return false;
  }
  const int rank = group().rank();
  auto& post = group().block().post(rank, sequence);
  const auto& arena = group().context().arena();
  const auto offset = arena.offset_of(operation().input);
  detail::announce(post.announcement, operation());
  post.offset = offset;
  post.output_offset = arena.offset_of(operation().output);
  // Decided by the longest input, so that members differ only where their memory does.
  const std::size_t limit = offset == no_offset ? Block::slot_bytes : Block::slot_bytes_from_arena;
  post.in_slot = shape_.longest_total() * size_of(operation().dtype) <= limit ? 1 : 0;
  if (post.in_slot != 0 && shape_.is_source(rank)) {
    if (const std::size_t bytes = shape_.total(rank) * size_of(operation().dtype); bytes > 0) {
      std::memcpy(group().block().slot(rank, sequence), operation().input, bytes);
    }
  }
  post.number.store(sequence + 1, std::memory_order_release);
  group().wake();
  stage_ = Stage::posted;
  return true;
}

void CollectiveRequest::advance() {
  if (stage_ == Stage::posted) {
    if (!all_posted() || !agree()) return;
    plan();
    stage_ = Stage::stepping;
    arrive(0);
  }
  if (stage_ == Stage::stepping && !step()) return;
  if (stage_ == Stage::finishing) {
    auto& progress = group().progress();
    const bool over =
        path_ == Path::slots || all_reached(progress.worked, &Block::worked, first_step_ + steps_);
    if (!over) return;
    copy_out(steps_ - 1);
    set_complete();
  }
}

bool CollectiveRequest::all_posted() const {
  const auto& block = group().block();
  for (int member = 0; member < group().size(); ++member) {
    const auto& number = block.post(member, operation().sequence).number;
    if (number.load(std::memory_order_acquire) != operation().sequence + 1) return false;
  }
  return true;
}

bool CollectiveRequest::all_reached(std::vector<std::uint64_t>& seen,
                                    Counter& (Block::*counter)(int) const,
                                    std::uint64_t value) const {
  for (int member = 0; member < group().size(); ++member) {
    auto& known = seen[static_cast<std::size_t>(member)];
    if (known >= value) continue;
    known = (group().block().*counter)(member).value.load(std::memory_order_acquire);
    if (known < value) return false;
  }
  return true;
}

bool CollectiveRequest::agree() {
  std::array<const detail::Announcement*, max_ranks> announcements;
  const auto size = static_cast<std::size_t>(group().size());
  for (std::size_t member = 0; member < size; ++member) {
    announcements[member] =
        &group().block().post(static_cast<int>(member), operation().sequence).announcement;
  }
  const auto different = detail::difference(std::span(announcements).first(size), group().names(),
                                            operation().sequence);
  if (!different) return true;
  auto& context = group().context();
  context.world().fail({.kind = Failure::Kind::mismatch,
                        .rank = context.local_rank(different->rank),
                        .text = different->text});
  return false;
}

void CollectiveRequest::plan() {
  auto& progress = group().progress();
  bool all_in_slots = true;
  bool all_in_arena = true;
  for (int member = 0; member < group().size(); ++member) {
    if (!shape_.is_source(member)) continue;
    const auto& post = group().block().post(member, operation().sequence);
    all_in_slots = all_in_slots && post.in_slot != 0;
    all_in_arena = all_in_arena && post.offset != no_offset;
  }
  path_ = all_in_slots ? Path::slots : all_in_arena ? Path::direct : Path::staged;
  if (path_ != Path::slots) {
    for (int member = 0; member < group().size(); ++member) {
      const auto& post = group().block().post(member, operation().sequence);
      offsets_.push_back(post.offset);
      outputs_.push_back(post.output_offset);
    }
  }
  const std::size_t longest = shape_.longest_part();
  piece_elements_ = longest;
  if (path_ == Path::staged) {
    // Every part's piece begins on a cache line of its own.
    const std::size_t piece_bytes =
        Block::chunk_bytes / static_cast<std::size_t>(shape_.parts()) / cache_line * cache_line;
    piece_elements_ = piece_bytes / size_of(operation().dtype);
    steps_ = (longest + piece_elements_ - 1) / piece_elements_;
  }
  first_step_ = progress.next_step;
  progress.next_step += steps_;
  progress.over_at[operation().sequence % Block::ring] = progress.next_step;
  ++progress.planned;
}

void CollectiveRequest::arrive(std::uint64_t step) {
  if (path_ != Path::staged || step == steps_) return;
  {
    const detail::Working working(worked_);
    copy_in(step);
  }
  group()
      .block()
      .arrived(group().rank())
      .value.store(first_step_ + step + 1, std::memory_order_release);
  group().wake();
}

bool CollectiveRequest::step() {
  auto& progress = group().progress();
  for (;;) {
    const std::uint64_t reached = first_step_ + step_ + 1;
    if (!step_worked_) {
      if (path_ == Path::staged && !all_reached(progress.arrived, &Block::arrived, reached))
        return false;
      if (path_ == Path::slots) {
        work(step_);  // over before a clock could be read
      } else {
        const detail::Working working(worked_);
        work(step_);
      }
      group().block().worked(group().rank()).value.store(reached, std::memory_order_release);
      // On the slots path only a member whose ring is full waits for this; the next announcement
      // wakes it.
      if (path_ != Path::slots) group().wake();
      step_worked_ = true;
      // The other chunk is free: all have worked the step before.
      arrive(step_ + 1);
    }
    if (step_ + 1 == steps_) break;
    if (!all_reached(progress.worked, &Block::worked, reached)) return false;
    copy_out(step_);
    ++step_;
    step_worked_ = false;
  }
  stage_ = Stage::finishing;
  return true;
}

detail::Range CollectiveRequest::range(int source, int part, std::uint64_t step) const {
  const std::size_t begin = step * piece_elements_;
  const std::size_t length = shape_.length(source, part);
  return {.begin = begin, .length = length > begin ? std::min(length - begin, piece_elements_) : 0};
}

std::byte* CollectiveRequest::piece(int source, int part, std::uint64_t step) const {
  const std::size_t element = size_of(operation().dtype);
  const std::size_t in_source = (shape_.begin(part) + step * piece_elements_) * element;
  // The own input is read where it lies; only an all_reduce writes there, and there it is the
  // output.
  if (source == group().rank()) return const_cast<std::byte*>(operation().input) + in_source;
  if (path_ == Path::slots) return group().block().slot(source, operation().sequence) + in_source;
  const auto offset = offsets_[static_cast<std::size_t>(source)];
  if (offset != no_offset) return group().context().arena().at(offset) + in_source;
  return group().block().chunk(source, step) +
         static_cast<std::size_t>(part) * piece_elements_ * element;
}

/// This rank's share of what all work on: whole cache lines, the last rank's may be shorter.
detail::Range CollectiveRequest::my_segment(detail::Range piece) const {
  return detail::slice_of(piece.length, size_of(operation().dtype), group().rank(), group().size());
}

void CollectiveRequest::copy_in(std::uint64_t step) {
  const int rank = group().rank();
  if (!shape_.is_source(rank) || offsets_[static_cast<std::size_t>(rank)] != no_offset) return;
  const std::size_t element = size_of(operation().dtype);
  std::byte* chunk = group().block().chunk(rank, step);
  const auto copy = [&](std::byte* to, const std::byte* from, std::size_t elements) {
    if (elements > 0) std::memcpy(to, from, elements * element);
  };
  if (operation().collective == Collective::all_reduce) {
    // The own segment is reduced where it lies; the others read only the rest.
    const detail::Range whole = range(rank, 0, step);
    const detail::Range mine = my_segment(whole);
    const std::byte* from = piece(rank, 0, step);
    const std::size_t after = mine.begin + mine.length;
    copy(chunk, from, mine.begin);
    copy(chunk + after * element, from + after * element, whole.length - after);
    return;
  }
  for (int part = 0; part < shape_.parts(); ++part) {
    if (part == rank && shape_.parts() > 1) continue;
    copy(chunk + static_cast<std::size_t>(part) * piece_elements_ * element,
         piece(rank, part, step), range(rank, part, step).length);
  }
}

void CollectiveRequest::copy_out(std::uint64_t step) {
  const int rank = group().rank();
  if (operation().collective != Collective::all_reduce || path_ != Path::staged ||
      offsets_[static_cast<std::size_t>(rank)] != no_offset) {
    return;
  }
  const std::size_t element = size_of(operation().dtype);
  const detail::Range whole = range(rank, 0, step);
  const detail::Range mine = my_segment(whole);
  const std::byte* from = group().block().chunk(rank, step);
  std::byte* to = piece(rank, 0, step);
  const std::size_t after = mine.begin + mine.length;
  const detail::Working working(worked_);
  if (mine.begin > 0) std::memcpy(to, from, mine.begin * element);
  if (whole.length > after) {
    std::memcpy(to + after * element, from + after * element, (whole.length - after) * element);
  }
}

void CollectiveRequest::work(std::uint64_t step) {
  const int rank = group().rank();
  const std::size_t element = size_of(operation().dtype);
  std::byte* output = operation().output;
  switch (operation().collective) {
    case Collective::all_reduce:
    case Collective::reduce_scatter:
      reduce(step);
      return;
    case Collective::broadcast:
      if (path_ == Path::direct && reaches(offsets_)) {
        spread(step);
      } else if (rank != operation().peer) {
        pull(operation().peer, 0, output, step);
      }
      return;
    case Collective::scatter:
      pull(operation().peer, rank, output, step);
      return;
    case Collective::gather:
      if (rank == operation().peer) pull_all(step);
      return;
    case Collective::all_gather:
      if (path_ == Path::direct && reaches(outputs_)) {
        push(step);
      } else {
        pull_all(step);
      }
      return;
    case Collective::all_to_all:
      for (int source = 0; source < group().size(); ++source) {
        pull(source, rank, output + operation().part_begin(source) * element, step);
      }
      return;
    case Collective::barrier:
    case Collective::send:
    case Collective::recv:
      return;
  }
}

void CollectiveRequest::pull(int source, int part, std::byte* output, std::uint64_t step) {
  const detail::Range piece_range = range(source, part, step);
  if (piece_range.length == 0) return;
  const std::size_t element = size_of(operation().dtype);
  // In place, a rank's own part may already lie where it belongs.
  kernels::copy_bytes(output + piece_range.begin * element, piece(source, part, step),
                      piece_range.length * element);
}

void CollectiveRequest::pull_all(std::uint64_t step) {
  const std::size_t element = size_of(operation().dtype);
  for (int source = 0; source < group().size(); ++source) {
    pull(source, 0, operation().output + operation().part_begin(source) * element, step);
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

void CollectiveRequest::spread(std::uint64_t step) {
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
  const bool everywhere = operation().collective == Collective::all_reduce;
  const int part = everywhere ? 0 : rank;
  const detail::Range whole = range(rank, part, step);
  // On the slots path every member sums all elements itself and needs no further synchronisation.
  const detail::Range share = everywhere && path_ != Path::slots
                                  ? my_segment(whole)
                                  : detail::Range{.length = whole.length};
  if (share.length == 0 || (everywhere && size == 1 && !operation().wire)) return;

  std::array<const std::byte*, max_ranks> inputs;
  std::array<std::byte*, max_ranks> outputs;
  for (std::size_t source = 0; source < size; ++source) {
    outputs[source] = piece(static_cast<int>(source), part, step) + share.begin * element;
    inputs[source] = outputs[source];
  }
  std::size_t output_count = size;
  if (!everywhere) {
    outputs[0] = operation().output + whole.begin * element;
    output_count = 1;
  } else if (path_ == Path::slots) {
    // Of two members each has only the other's slot to read. Writing there too makes its line cheap
    // to write again: a line that another only reads is taken back at a price.
    outputs[0] = operation().output;
    if (size == 2) outputs[1] = piece(1 - rank, part, step);
    output_count = size == 2 ? 2 : 1;
  }
  detail::reduce(operation(), std::span(inputs).first(size), std::span(outputs).first(output_count),
                 share.length);
}

std::vector<int> CollectiveRequest::missing() const {
  std::vector<int> ranks;
  const auto& block = group().block();
  for (int member = 0; member < group().size(); ++member) {
    if (member == group().rank()) continue;
    bool late = false;
    switch (stage_) {
      case Stage::queued: {
        // It waits behind earlier collectives: the ranks that hold up the next of them.
        const auto& progress = group().progress();
        late = block.worked(member).value.load() < progress.next_step ||
               block.post(member, progress.planned).number.load() <= progress.planned;
        break;
      }
      case Stage::posted:
        late = block.post(member, operation().sequence).number.load() != operation().sequence + 1;
        break;
      case Stage::stepping:
      case Stage::finishing: {
        const std::uint64_t reached = first_step_ + step_ + 1;
        late = block.worked(member).value.load() < reached;
        if (stage_ == Stage::stepping && !step_worked_) {
          late = block.arrived(member).value.load() < reached;
        }
        break;
      }
    }
    if (late) ranks.push_back(group().members()[static_cast<std::size_t>(member)]);
  }
  return ranks;
}

}  // namespace lockstep::host
