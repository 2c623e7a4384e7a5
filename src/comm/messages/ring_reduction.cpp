#include <algorithm>
#include <array>

#include "comm/messages/transfer.h"
#include "comm/waiting.h"
#include "kernels/reduce.h"

// Note [How a ring reduces]
// Slice s belongs to rank s. Its partial sum begins at rank s + 1 and passes around the ring: each
// rank adds its own input, rank s last. Then the result passes around the ring in the same
// direction. Every rank therefore sends 2 (N - 1) slices. Every element is summed by one rank at a
// time, so all ranks get the same bits. The order of summation differs between slices, so these are
// not the bits of a sum in rank order.
// A slice is sent in pieces. Message m of a rank is piece m % pieces of the slice of turn m /
// pieces. Turn t of the sums is slice rank - 1 - t, turn t of the results slice rank - t. The
// contents of message m are sent on as message m + pieces, after this rank has added its own input.

namespace lockstep::inline v0_2::messages {
namespace {

using detail::Task;
using detail::until;

class RingReduction final : public Transfer {
 public:
  RingReduction(const MessageGroup& group, const Operation& operation)
      : Transfer(group, operation), window_(pieces().window) {
    constexpr std::size_t shortest = 32 << 10;
    // Pieces, so that a rank adds one while it receives the next.
    constexpr std::size_t at_least = 4;
    const auto members = static_cast<std::size_t>(size());
    const std::size_t slice = slice_of(operation.count, element(), 0, size()).length;
    const std::size_t bytes = std::clamp(slice * element() / at_least, shortest, pieces().bytes);
    piece_elements_ = std::min(bytes / element(), slice);
    pieces_ = (slice + piece_elements_ - 1) / piece_elements_;
    messages_ = (members - 1) * pieces_;
    staging_ = std::make_unique_for_overwrite<std::byte[]>(window_ * piece_elements_ * element());
    for (auto* flags : {&sum_arrived_, &sum_sent_, &result_arrived_, &result_sent_}) {
      flags->resize(messages_);
    }
    run(receive_sums());
    run(add_sums());
    run(send_sums());
    run(receive_results());
    run(send_results());
  }

 private:
  int next() const { return (rank() + 1) % size(); }
  int previous() const { return (rank() + size() - 1) % size(); }
  /// The piece that a message has. In turn 0 it belongs to the slice of rank - back.
  Range piece(std::size_t message, int back) const {
    const int turn = static_cast<int>(message / pieces_);
    const int owner = (rank() - back - turn + 2 * size()) % size();
    return piece_of(slice_of(operation().count, element(), owner, size()), message % pieces_,
                    piece_elements_);
  }
  std::byte* staged(std::size_t message) const {
    return staging_.get() + message % window_ * piece_elements_ * element();
  }

  Task receive_sums() {
    for (std::size_t i = 0; i < messages_; ++i) {
      co_await until([&] { return i < sums_added_ + window_; });
      receive(staged(i), piece(i, 2).length * element(), previous(), Channel::parts,
              &sum_arrived_[i]);
    }
  }

  Task add_sums() {
    for (; sums_added_ < messages_; ++sums_added_) {
      co_await until([&] { return sum_arrived_[sums_added_] != 0; });
      add(sums_added_);
    }
  }

  void add(std::size_t message) {
    const auto range = piece(message, 2);
    if (range.length == 0) return;
    const detail::WorkTimer timer(worked_);
    std::byte* sum = place_of(range);
    const std::array<const std::byte*, 2> inputs{staged(message), sum};
    const bool average = operation().reduce == ReduceOp::avg;
    kernels::reduce(operation().dtype, average ? ReduceOp::sum : operation().reduce, inputs,
                    {&sum, 1}, range.length);
    const bool last = message + pieces_ >= messages_;
    if (average && last) kernels::multiply(operation().dtype, 1.0 / size(), sum, sum, range.length);
  }

  Task send_sums() {
    for (std::size_t i = 0; i < messages_; ++i) {
      co_await until([&] {
        return i < sums_added_ + pieces_ && (i < window_ || sum_sent_[i - window_] != 0);
      });
      const auto range = piece(i, 1);
      send(place_of(range), range.length * element(), next(), Channel::parts, &sum_sent_[i]);
    }
  }

  /// A result is received at the address from which the sum was sent.
  Task receive_results() {
    for (std::size_t i = 0; i < messages_; ++i) {
      co_await until(
          [&] { return sum_sent_[i] != 0 && (i < window_ || result_arrived_[i - window_] != 0); });
      const auto range = piece(i, 1);
      receive(place_of(range), range.length * element(), previous(), Channel::results,
              &result_arrived_[i]);
    }
  }

  Task send_results() {
    for (std::size_t i = 0; i < messages_; ++i) {
      co_await until([&] {
        const bool is_final =
            i < pieces_ ? sums_added_ > messages_ - pieces_ + i : result_arrived_[i - pieces_] != 0;
        return is_final && (i < window_ || result_sent_[i - window_] != 0);
      });
      const auto range = piece(i, 0);
      send(place_of(range), range.length * element(), next(), Channel::results, &result_sent_[i]);
    }
  }

  std::size_t window_;  ///< messages in progress, of sums and of results each
  std::size_t piece_elements_ = 0;
  std::size_t pieces_ = 0;                ///< pieces of the longest slice
  std::size_t messages_ = 0;              ///< messages of sums; as many of results
  std::unique_ptr<std::byte[]> staging_;  ///< received sums of the window
  std::size_t sums_added_ = 0;
  // Of each message:
  std::vector<std::uint8_t> sum_arrived_;
  std::vector<std::uint8_t> sum_sent_;
  std::vector<std::uint8_t> result_arrived_;
  std::vector<std::uint8_t> result_sent_;
};

}  // namespace

std::unique_ptr<Transfer> make_ring_reduction(const MessageGroup& group,
                                              const Operation& operation) {
  return std::make_unique<RingReduction>(group, operation);
}

}  // namespace lockstep::messages
