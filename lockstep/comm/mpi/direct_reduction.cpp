#include <algorithm>

#include "lockstep/comm/mpi/transfer.h"
#include "lockstep/comm/reduction.h"
#include "lockstep/comm/statistics.h"

namespace lockstep::mpi {
namespace {

/// Every member owns a slice: of all_reduce a share, of reduce_scatter its part. All slices are
/// exchanged in rounds of a piece each; an owner sums its piece when it is there from all, and for
/// all_reduce sends the sum to all. A few rounds are under way at once.
class DirectReduction final : public Transfer {
 public:
  DirectReduction(const MpiCommunicator& group, const Operation& operation);

  void advance() override;
  bool begun() const override;

 private:
  static constexpr std::size_t window = 4;

  bool everywhere() const { return operation().collective == Collective::all_reduce; }
  detail::Range slice(int member) const;
  /// Member's piece of one round, as elements of the input.
  detail::Range piece(int member, std::size_t round) const;
  std::byte* staged(int source, std::size_t round) const;
  std::uint8_t& sent(int member, std::size_t round);
  bool all_here(std::size_t round) const;

  void begin_round(std::size_t round);
  void begin_results();
  void reduce(std::size_t round);

  std::size_t piece_elements_ = 0;
  std::size_t rounds_ = 0;
  std::size_t begun_rounds_ = 0;
  std::size_t reduced_ = 0;                 ///< rounds
  std::unique_ptr<std::byte[]> staging_;    ///< of every member, a piece a round of the window
  std::vector<std::uint8_t> here_;          ///< the same of what has come
  std::vector<std::uint8_t> sent_;          ///< pieces that have left, so that results may come
  std::vector<std::size_t> results_begun_;  ///< rounds, of each member
};

DirectReduction::DirectReduction(const MpiCommunicator& group, const Operation& operation)
    : Transfer(group, operation) {
  constexpr std::size_t longest = 512 << 10;
  constexpr std::size_t shortest = 32 << 10;
  constexpr std::size_t most_staging = 32 << 20;
  const auto members = static_cast<std::size_t>(size());
  const std::size_t bytes = std::clamp(most_staging / window / members, shortest, longest);
  piece_elements_ = bytes / element();
  std::size_t longest_slice = 0;
  for (int member = 0; member < size(); ++member) {
    longest_slice = std::max(longest_slice, slice(member).length);
  }
  piece_elements_ = std::min(piece_elements_, longest_slice);
  rounds_ = (longest_slice + piece_elements_ - 1) / piece_elements_;
  staging_ =
      std::make_unique_for_overwrite<std::byte[]>(window * members * piece_elements_ * element());
  here_.resize(window * members);
  if (everywhere()) sent_.resize(rounds_ * members);
  results_begun_.resize(members);
}

detail::Range DirectReduction::slice(int member) const {
  if (everywhere()) return slice_of(operation().count, element(), member, size());
  return {.begin = operation().part_begin(member), .length = operation().part(member)};
}

detail::Range DirectReduction::piece(int member, std::size_t round) const {
  const auto whole = slice(member);
  const std::size_t begin = std::min(round * piece_elements_, whole.length);
  return {.begin = whole.begin + begin, .length = std::min(piece_elements_, whole.length - begin)};
}

std::byte* DirectReduction::staged(int source, std::size_t round) const {
  const std::size_t place =
      round % window * static_cast<std::size_t>(size()) + static_cast<std::size_t>(source);
  return staging_.get() + place * piece_elements_ * element();
}

std::uint8_t& DirectReduction::sent(int member, std::size_t round) {
  return sent_[round * static_cast<std::size_t>(size()) + static_cast<std::size_t>(member)];
}

bool DirectReduction::all_here(std::size_t round) const {
  const auto begin = here_.begin() + static_cast<std::ptrdiff_t>(round % window) * size();
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
    while (begun_rounds_ < rounds_ && begun_rounds_ < reduced_ + window) {
      begin_round(begun_rounds_++);
    }
    if (everywhere()) begin_results();
    if (reduced_ == begun_rounds_ || !all_here(reduced_)) return;
    reduce(reduced_++);
  }
}

void DirectReduction::begin_round(std::size_t round) {
  const std::size_t mine = piece(rank(), round).length * element();
  std::uint8_t* here = &here_[round % window * static_cast<std::size_t>(size())];
  std::fill_n(here, size(), std::uint8_t{0});
  here[rank()] = 1;
  for (int step = 1; step < size(); ++step) {
    const int source = (rank() + size() - step) % size();
    const int owner = (rank() + step) % size();
    receive(staged(source, round), mine, source, Channel::parts, &here[source]);
    const auto theirs = piece(owner, round);
    send(operation().input + theirs.begin * element(), theirs.length * element(), owner,
         Channel::parts, everywhere() ? &sent(owner, round) : nullptr);
  }
}

/// A result comes to the place from which the part was sent.
void DirectReduction::begin_results() {
  for (int owner = 0; owner < size(); ++owner) {
    if (owner == rank()) continue;
    auto& round = results_begun_[static_cast<std::size_t>(owner)];
    for (; round < begun_rounds_ && sent(owner, round) != 0; ++round) {
      const auto theirs = piece(owner, round);
      receive(operation().output + theirs.begin * element(), theirs.length * element(), owner,
              Channel::results);
    }
  }
}

void DirectReduction::reduce(std::size_t round) {
  const auto mine = piece(rank(), round);
  if (mine.length == 0) return;
  std::vector<const std::byte*> inputs(static_cast<std::size_t>(size()));
  for (int source = 0; source < size(); ++source) {
    inputs[static_cast<std::size_t>(source)] =
        source == rank() ? operation().input + mine.begin * element() : staged(source, round);
  }
  const std::size_t into = everywhere() ? mine.begin : mine.begin - slice(rank()).begin;
  std::byte* output = operation().output + into * element();
  {
    const detail::Working working(worked_);
    detail::reduce(operation(), inputs, {&output, 1}, mine.length);
  }
  if (!everywhere()) return;
  for (int step = 1; step < size(); ++step) {
    send(output, mine.length * element(), (rank() + step) % size(), Channel::results);
  }
}

}  // namespace

std::unique_ptr<Transfer> make_direct_reduction(const MpiCommunicator& group,
                                                const Operation& operation) {
  return std::make_unique<DirectReduction>(group, operation);
}

}  // namespace lockstep::mpi
