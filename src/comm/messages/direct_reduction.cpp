#include <algorithm>

#include "comm/messages/transfer.h"
#include "comm/operation.h"
#include "comm/waiting.h"
#include "kernels/reduce.h"

// Note [Where 16-bit elements are stored]
// An all_reduce with a wire dtype needs no memory beside the buffer for its 16-bit elements. A
// piece that is sent to its owner is rounded into the first half of its place in the buffer. The
// reduced piece is received into the second half, and is widened over the whole place from its
// front. The owner also keeps its reduced piece in the second half until it has been sent to all
// members.

namespace lockstep::inline v0_2::messages {
namespace {

using detail::Task;
using detail::until;

/// Every member owns a slice: a share of the buffer for all_reduce and reduce, its part for
/// reduce_scatter. In each round, one piece of every slice is exchanged. The owner reduces its
/// piece when it has received it from all members. It then sends the result to all for all_reduce,
/// to root for reduce. A few rounds are in progress at the same time.
class DirectReduction final : public Transfer {
 public:
  DirectReduction(const MessageGroup& group, const Operation& operation)
      : Transfer(group, operation) {
    constexpr std::size_t shortest = 32 << 10;
    constexpr std::size_t most_staging = 32 << 20;
    const auto members = static_cast<std::size_t>(size());
    const std::size_t longest = pieces().bytes;
    const std::size_t most = pieces().window;
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
    arrived_.resize(window_ * members);
    if (gets_results(rank())) {
      sent_.resize(rounds_ * members);
    } else if (!keeps_result()) {
      reduced_slice_ =
          std::make_unique_for_overwrite<std::byte[]>(slice(rank()).length * element());
    }
    if (has_wire()) {
      results_arrived_.resize(rounds_ * members);
      results_sent_.resize(rounds_ * members);
    }
    run(exchange_inputs());
    for (int owner = 0; owner < size(); ++owner) {
      if (gets_results(rank()) && owner != rank()) run(receive_results(owner));
      if (has_wire()) run_final(widen(owner));
    }
    run(reduce_inputs());
  }

 private:
  bool has_wire() const { return operation().wire.has_value(); }
  bool keeps_result() const { return operation().collective == Collective::reduce_scatter; }
  /// Whether the results of all owners form the member's output.
  bool gets_results(int member) const {
    return operation().collective == Collective::all_reduce ||
           (!keeps_result() && member == operation().peer);
  }
  Range slice(int member) const {
    if (keeps_result()) {
      return {.begin = operation().part_begin(member), .length = operation().part(member)};
    }
    return slice_of(operation().count, element(), member, size());
  }
  /// The piece of a member's slice in one round, as elements of the input.
  Range piece(int member, std::size_t round) const {
    return piece_of(slice(member), round, piece_elements_);
  }
  /// The address from which an owner sends its reduced piece, and to which others receive it.
  std::byte* result(const Range& piece) const {
    return place_of(piece) + (has_wire() ? piece.length * wire_element() : 0);
  }
  /// The address to which this rank writes its reduced piece.
  std::byte* own_result(const Range& piece) const {
    if (gets_results(rank())) return result(piece);
    std::byte* slice_begin = keeps_result() ? operation().output : reduced_slice_.get();
    return slice_begin + (piece.begin - slice(rank()).begin) * element();
  }
  std::size_t flag(int member, std::size_t round) const {
    return round * static_cast<std::size_t>(size()) + static_cast<std::size_t>(member);
  }
  std::byte* staged(int source, std::size_t round) const {
    return staging_.get() + flag(source, round % window_) * piece_elements_ * wire_element();
  }
  bool all_arrived(std::size_t round) const {
    const auto* begin = &arrived_[flag(0, round % window_)];
    return std::all_of(begin, begin + size(), [](auto arrived) { return arrived != 0; });
  }
  bool can_be_widened(int owner, std::size_t round) const {
    if (owner != rank()) return results_arrived_[flag(owner, round)] != 0;
    if (round >= reduced_rounds_) return false;
    if (piece(owner, round).length == 0) return true;
    const auto* begin = &results_sent_[flag(0, round)];
    return std::count(begin, begin + size(), 0) == 1;  // this rank's own flag
  }

  Task exchange_inputs() {
    for (; begun_rounds_ < rounds_; ++begun_rounds_) {
      co_await until([&] { return begun_rounds_ < reduced_rounds_ + window_; });
      begin_round(begun_rounds_);
    }
  }

  Task reduce_inputs() {
    for (; reduced_rounds_ < rounds_; ++reduced_rounds_) {
      co_await until(
          [&] { return reduced_rounds_ < begun_rounds_ && all_arrived(reduced_rounds_); });
      reduce(reduced_rounds_);
    }
  }

  /// A result is received at the address from which the piece was sent.
  Task receive_results(int owner) {
    for (std::size_t round = 0; round < rounds_; ++round) {
      co_await until([&] { return sent_[flag(owner, round)] != 0; });
      const auto theirs = piece(owner, round);
      receive(result(theirs), theirs.length * wire_element(), owner, Channel::results,
              has_wire() ? &results_arrived_[flag(owner, round)] : nullptr);
    }
  }

  Task widen(int owner) {
    for (std::size_t round = 0; round < rounds_; ++round) {
      co_await until([&] { return can_be_widened(owner, round); });
      const detail::WorkTimer timer(worked_);
      const auto theirs = piece(owner, round);
      kernels::widen_halves(*operation().wire, result(theirs), place_of(theirs), theirs.length);
    }
  }

  void begin_round(std::size_t round) {
    const std::size_t mine = piece(rank(), round).length * wire_element();
    std::uint8_t* arrived = &arrived_[flag(0, round % window_)];
    std::fill_n(arrived, size(), std::uint8_t{0});
    arrived[rank()] = 1;
    for (int step = 1; step < size(); ++step) {
      const int source = (rank() + size() - step) % size();
      const int owner = (rank() + step) % size();
      receive(staged(source, round), mine, source, Channel::parts, &arrived[source]);
      const auto theirs = piece(owner, round);
      if (has_wire()) {
        const detail::WorkTimer timer(worked_);
        kernels::round_to_halves(*operation().wire, operation().reduce,
                                 static_cast<std::size_t>(size()), place_of(theirs),
                                 place_of(theirs), theirs.length);
      }
      send(operation().input + theirs.begin * element(), theirs.length * wire_element(), owner,
           Channel::parts, gets_results(rank()) ? &sent_[flag(owner, round)] : nullptr);
    }
  }

  void reduce(std::size_t round) {
    const auto mine = piece(rank(), round);
    if (mine.length == 0) return;
    std::byte* output = own_result(mine);
    reduce_piece(round, mine, output);
    for (int step = 1; step < size(); ++step) {
      const int member = (rank() + step) % size();
      if (!gets_results(member)) continue;
      send(output, mine.length * wire_element(), member, Channel::results,
           has_wire() ? &results_sent_[flag(member, round)] : nullptr);
    }
  }

  /// Reduces this rank's piece of that round over all ranks.
  void reduce_piece(std::size_t round, const Range& mine, std::byte* output) {
    const detail::WorkTimer timer(worked_);
    std::vector<const std::byte*> inputs(static_cast<std::size_t>(size()));
    for (int source = 0; source < size(); ++source) {
      inputs[static_cast<std::size_t>(source)] = staged(source, round);
    }
    const std::byte* input = operation().input + mine.begin * element();
    if (has_wire()) {
      kernels::round_to_halves(*operation().wire, operation().reduce, inputs.size(), input,
                               staged(rank(), round), mine.length);
      kernels::reduce_halves(*operation().wire, operation().reduce, inputs, {&output, 1},
                             mine.length);
    } else {
      inputs[static_cast<std::size_t>(rank())] = input;
      detail::reduce(operation(), inputs, {&output, 1}, mine.length);
    }
  }

  std::size_t window_;  ///< rounds in progress at the same time
  std::size_t piece_elements_ = 0;
  std::size_t rounds_ = 0;
  std::size_t begun_rounds_ = 0;
  std::size_t reduced_rounds_ = 0;
  std::unique_ptr<std::byte[]> staging_;  ///< one piece for each member and round of the window
  std::unique_ptr<std::byte[]> reduced_slice_;  ///< of a reduce, unless this rank is root
  std::vector<std::uint8_t> arrived_;           ///< whether that piece has arrived
  std::vector<std::uint8_t>
      sent_;  ///< whether a piece was sent, so that its result may be received
  // Used only with a wire dtype:
  std::vector<std::uint8_t>
      results_arrived_;  ///< whether a member's result has arrived, for each round
  std::vector<std::uint8_t>
      results_sent_;  ///< whether this rank's result was sent to a member, for each round
};

}  // namespace

std::unique_ptr<Transfer> make_direct_reduction(const MessageGroup& group,
                                                const Operation& operation) {
  return std::make_unique<DirectReduction>(group, operation);
}

}  // namespace lockstep::messages
