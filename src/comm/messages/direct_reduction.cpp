#include <algorithm>

#include "comm/messages/transfer.h"
#include "comm/operation.h"
#include "comm/reduction.h"
#include "comm/waiting.h"
#include "kernels/reduce_rounded.h"

// Note [Where halves lie]
// Floats that are sent as 16-bit halves need no memory beside the buffer. On the way to the owner,
// a piece's rounded halves lie in the first half of its place. Their sums come back into the second
// half, and are widened over the whole place from its front. The owner's own sums also lie in the
// second half, until they have been sent to all.

namespace lockstep::inline v0_2::messages {
namespace {

/// Every member owns a slice: of all_reduce a share, of reduce_scatter its part. All slices are
/// exchanged in rounds of a piece each; an owner sums its piece when it is there from all, and for
/// all_reduce sends the sum to all. A few rounds are under way at once.
class DirectReduction final : public Transfer {
 public:
  DirectReduction(GroupTransport transport, const Operation& operation);

  void advance() override;
  bool begun() const override;
  bool over() const override { return Transfer::over() && to_widen_ == 0; }

 private:
  bool as_halves() const { return operation().wire.has_value(); }
  bool everywhere() const { return operation().collective == Collective::all_reduce; }
  Range slice(int member) const;
  /// Member's piece of one round, as elements of the input.
  Range piece(int member, std::size_t round) const;
  std::byte* place_of(const Range& piece) const {
    return operation().output + piece.begin * element();
  }
  /// The place that an owner sends its reduced piece from, and that others receive it into.
  std::byte* result(const Range& piece) const {
    return place_of(piece) + (as_halves() ? piece.length * wire_element() : 0);
  }
  std::byte* staged(int source, std::size_t round) const;
  std::size_t flag(int member, std::size_t round) const {
    return round * static_cast<std::size_t>(size()) + static_cast<std::size_t>(member);
  }
  bool all_here(std::size_t round) const;
  bool can_be_widened(int owner, std::size_t round) const;

  void begin_round(std::size_t round);
  void begin_results();
  void reduce(std::size_t round);
  /// This rank's piece of that round, over all ranks.
  void add_up(std::size_t round, std::byte* output);
  void widen();

  std::size_t window_;  ///< rounds under way
  std::size_t piece_elements_ = 0;
  std::size_t rounds_ = 0;
  std::size_t begun_rounds_ = 0;
  std::size_t reduced_ = 0;                 ///< rounds
  std::unique_ptr<std::byte[]> staging_;    ///< of every member, a piece a round of the window
  std::vector<std::uint8_t> here_;          ///< the same of what has come
  std::vector<std::uint8_t> sent_;          ///< pieces that have left, so that results may come
  std::vector<std::size_t> results_begun_;  ///< rounds, of each member
  // Used only where floats are sent as halves:
  std::vector<std::uint8_t> results_here_;  ///< of every member
  std::vector<std::uint8_t> results_left_;  ///< own ones, to every member
  std::vector<std::size_t> widened_;        ///< rounds, of each member
  std::size_t to_widen_ = 0;                ///< pieces
};

DirectReduction::DirectReduction(GroupTransport transport, const Operation& operation)
    : Transfer(transport, operation) {
  constexpr std::size_t shortest = 32 << 10;
  constexpr std::size_t most_staging = 32 << 20;
  const auto members = static_cast<std::size_t>(size());
  const auto [longest, most] = pieces();
  window_ = std::clamp<std::size_t>(most_staging / longest / members, 4, most);
  const std::size_t bytes = std::clamp(most_staging / window_ / members, shortest, longest);
  piece_elements_ = bytes / wire_element();
  std::size_t longest_slice = 0;
  for (int member = 0; member < size(); ++member) {
    longest_slice = std::max(longest_slice, slice(member).length);
  }
  piece_elements_ = std::min(piece_elements_, longest_slice);
  rounds_ = (longest_slice + piece_elements_ - 1) / piece_elements_;
  staging_ = std::make_unique_for_overwrite<std::byte[]>(window_ * members * piece_elements_ *
                                                         wire_element());
  here_.resize(window_ * members);
  if (everywhere()) sent_.resize(rounds_ * members);
  results_begun_.resize(members);
  if (!as_halves()) return;
  results_here_.resize(rounds_ * members);
  results_left_.resize(rounds_ * members);
  widened_.resize(members);
  to_widen_ = rounds_ * members;
}

Range DirectReduction::slice(int member) const {
  if (everywhere()) return slice_of(operation().count, element(), member, size());
  return {.begin = operation().part_begin(member), .length = operation().part(member)};
}

Range DirectReduction::piece(int member, std::size_t round) const {
  const auto whole = slice(member);
  const std::size_t begin = std::min(round * piece_elements_, whole.length);
  return {.begin = whole.begin + begin, .length = std::min(piece_elements_, whole.length - begin)};
}

std::byte* DirectReduction::staged(int source, std::size_t round) const {
  const std::size_t place =
      round % window_ * static_cast<std::size_t>(size()) + static_cast<std::size_t>(source);
  return staging_.get() + place * piece_elements_ * wire_element();
}

bool DirectReduction::all_here(std::size_t round) const {
  const auto begin = here_.begin() + static_cast<std::ptrdiff_t>(round % window_) * size();
  return std::all_of(begin, begin + size(), [](auto here) { return here != 0; });
}

bool DirectReduction::begun() const {
  if (reduced_ < rounds_) return false;
  if (!everywhere()) return true;
  for (int member = 0; member < size(); ++member) {
    if (member != rank() && results_begun_[static_cast<std::size_t>(member)] < rounds_)
      return false;
  }
  return true;
}

void DirectReduction::advance() {
  for (;;) {
    while (begun_rounds_ < rounds_ && begun_rounds_ < reduced_ + window_) {
      begin_round(begun_rounds_++);
    }
    if (everywhere()) begin_results();
    if (as_halves()) widen();
    if (reduced_ == begun_rounds_ || !all_here(reduced_)) return;
    reduce(reduced_++);
  }
}

void DirectReduction::begin_round(std::size_t round) {
  const std::size_t mine = piece(rank(), round).length * wire_element();
  std::uint8_t* here = &here_[round % window_ * static_cast<std::size_t>(size())];
  std::fill_n(here, size(), std::uint8_t{0});
  here[rank()] = 1;
  for (int step = 1; step < size(); ++step) {
    const int source = (rank() + size() - step) % size();
    const int owner = (rank() + step) % size();
    receive(staged(source, round), mine, source, Channel::parts, &here[source]);
    const auto theirs = piece(owner, round);
    if (as_halves()) {
      const detail::Working working(worked_);
      kernels::round_to_halves(*operation().wire, operation().reduce,
                               static_cast<std::size_t>(size()), place_of(theirs), place_of(theirs),
                               theirs.length);
    }
    send(operation().input + theirs.begin * element(), theirs.length * wire_element(), owner,
         Channel::parts, everywhere() ? &sent_[flag(owner, round)] : nullptr);
  }
}

/// A result comes to the place from which the part was sent.
void DirectReduction::begin_results() {
  for (int owner = 0; owner < size(); ++owner) {
    if (owner == rank()) continue;
    auto& round = results_begun_[static_cast<std::size_t>(owner)];
    for (; round < begun_rounds_ && sent_[flag(owner, round)] != 0; ++round) {
      const auto theirs = piece(owner, round);
      receive(result(theirs), theirs.length * wire_element(), owner, Channel::results,
              as_halves() ? &results_here_[flag(owner, round)] : nullptr);
    }
  }
}

void DirectReduction::reduce(std::size_t round) {
  const auto mine = piece(rank(), round);
  if (mine.length == 0) return;
  std::byte* output = everywhere()
                          ? result(mine)
                          : operation().output + (mine.begin - slice(rank()).begin) * element();
  add_up(round, output);
  if (!everywhere()) return;
  for (int step = 1; step < size(); ++step) {
    const int member = (rank() + step) % size();
    send(output, mine.length * wire_element(), member, Channel::results,
         as_halves() ? &results_left_[flag(member, round)] : nullptr);
  }
}

void DirectReduction::add_up(std::size_t round, std::byte* output) {
  const detail::Working working(worked_);
  const auto mine = piece(rank(), round);
  std::vector<const std::byte*> inputs(static_cast<std::size_t>(size()));
  for (int source = 0; source < size(); ++source) {
    inputs[static_cast<std::size_t>(source)] = staged(source, round);
  }
  const std::byte* input = operation().input + mine.begin * element();
  if (as_halves()) {
    kernels::round_to_halves(*operation().wire, operation().reduce, inputs.size(), input,
                             staged(rank(), round), mine.length);
    kernels::reduce_halves(*operation().wire, operation().reduce, inputs, {&output, 1},
                           mine.length);
  } else {
    inputs[static_cast<std::size_t>(rank())] = input;
    detail::reduce(operation(), inputs, {&output, 1}, mine.length);
  }
}

bool DirectReduction::can_be_widened(int owner, std::size_t round) const {
  if (owner != rank()) return results_here_[flag(owner, round)] != 0;
  if (round == reduced_) return false;
  if (piece(owner, round).length == 0) return true;
  const auto begin = results_left_.begin() + static_cast<std::ptrdiff_t>(round) * size();
  return std::count(begin, begin + size(), 0) == 1;  // the flag of this rank itself
}

void DirectReduction::widen() {
  for (int owner = 0; owner < size(); ++owner) {
    auto& round = widened_[static_cast<std::size_t>(owner)];
    for (; round < rounds_ && can_be_widened(owner, round); ++round) {
      const detail::Working working(worked_);
      const auto theirs = piece(owner, round);
      kernels::widen_halves(*operation().wire, result(theirs), place_of(theirs), theirs.length);
      --to_widen_;
    }
  }
}

}  // namespace

std::unique_ptr<Transfer> make_direct_reduction(GroupTransport transport,
                                                const Operation& operation) {
  return std::make_unique<DirectReduction>(transport, operation);
}

}  // namespace lockstep::messages
