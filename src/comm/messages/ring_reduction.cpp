#include <algorithm>
#include <array>
#include <cstring>

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

class RingReduction final : public Transfer {
 public:
  RingReduction(GroupTransport transport, const Operation& operation);

  void advance() override;
  bool begun() const override {
    return results_begun_ == messages_ && results_expected_ == messages_;
  }

 private:
  int next() const { return (rank() + 1) % size(); }
  int previous() const { return (rank() + size() - 1) % size(); }
  /// The piece that a message has. In turn 0 it belongs to the slice of rank - back.
  Range piece(std::size_t message, int back) const;
  std::byte* address_of(const Range& range) const {
    return operation().output + range.begin * element();
  }
  std::byte* staged(std::size_t message) const {
    return staging_.get() + message % window_ * piece_elements_ * element();
  }

  void add_sums();
  void send_sums();
  void receive_results();
  void send_results();
  void add(std::size_t message);

  std::size_t window_;  ///< messages in progress, of sums and of results each
  std::size_t piece_elements_ = 0;
  std::size_t pieces_ = 0;                ///< pieces of the longest slice
  std::size_t messages_ = 0;              ///< messages of sums; as many of results
  std::unique_ptr<std::byte[]> staging_;  ///< received sums of the window
  std::vector<std::byte> factor_;         ///< 1/N for each element of a piece, for avg
  std::size_t sums_expected_ = 0;
  std::size_t sums_added_ = 0;
  std::size_t sums_begun_ = 0;
  std::size_t results_expected_ = 0;
  std::size_t results_begun_ = 0;
  std::vector<std::uint8_t> sum_arrived_;
  std::vector<std::uint8_t> sum_sent_;
  std::vector<std::uint8_t> result_arrived_;
  std::vector<std::uint8_t> result_sent_;
};

RingReduction::RingReduction(GroupTransport transport, const Operation& operation)
    : Transfer(transport, operation), window_(pieces().window) {
  constexpr std::size_t shortest = 32 << 10;
  constexpr std::size_t at_least = 4;  // pieces, so that a rank adds one while it receives the next
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
  if (operation.reduce != ReduceOp::avg) return;
  factor_.resize(piece_elements_ * element());
  const float as_float = 1.0f / static_cast<float>(size());
  const double as_double = 1.0 / static_cast<double>(size());
  for (std::size_t i = 0; i < piece_elements_; ++i) {
    const void* from = operation.dtype == DType::f32 ? static_cast<const void*>(&as_float)
                                                     : static_cast<const void*>(&as_double);
    std::memcpy(factor_.data() + i * element(), from, element());
  }
}

Range RingReduction::piece(std::size_t message, int back) const {
  const int turn = static_cast<int>(message / pieces_);
  const int owner = (rank() - back - turn + 2 * size()) % size();
  const auto slice = slice_of(operation().count, element(), owner, size());
  const std::size_t begin = std::min(message % pieces_ * piece_elements_, slice.length);
  return {.begin = slice.begin + begin, .length = std::min(piece_elements_, slice.length - begin)};
}

void RingReduction::advance() {
  add_sums();
  send_sums();
  receive_results();
  send_results();
}

void RingReduction::add_sums() {
  const auto expect = [&] {
    for (; sums_expected_ < std::min(messages_, sums_added_ + window_); ++sums_expected_) {
      receive(staged(sums_expected_), piece(sums_expected_, 2).length * element(), previous(),
              Channel::parts, &sum_arrived_[sums_expected_]);
    }
  };
  expect();
  while (sums_added_ < sums_expected_ && sum_arrived_[sums_added_] != 0) {
    add(sums_added_++);
    expect();
  }
}

void RingReduction::add(std::size_t message) {
  const auto range = piece(message, 2);
  if (range.length == 0) return;
  const detail::WorkTimer timer(worked_);
  std::byte* sum = address_of(range);
  const std::array<const std::byte*, 2> inputs{staged(message), sum};
  const bool average = operation().reduce == ReduceOp::avg;
  kernels::reduce(operation().dtype, average ? ReduceOp::sum : operation().reduce, inputs,
                  {&sum, 1}, range.length);
  const bool last = message + pieces_ >= messages_;
  if (!average || !last) return;
  const std::array<const std::byte*, 2> factors{sum, factor_.data()};
  kernels::reduce(operation().dtype, ReduceOp::product, factors, {&sum, 1}, range.length);
}

void RingReduction::send_sums() {
  for (; sums_begun_ < std::min(messages_, sums_added_ + pieces_); ++sums_begun_) {
    if (sums_begun_ >= window_ && sum_sent_[sums_begun_ - window_] == 0) return;
    const auto range = piece(sums_begun_, 1);
    send(address_of(range), range.length * element(), next(), Channel::parts,
         &sum_sent_[sums_begun_]);
  }
}

/// A result is received at the address from which the sum was sent.
void RingReduction::receive_results() {
  for (; results_expected_ < sums_begun_ && sum_sent_[results_expected_] != 0;
       ++results_expected_) {
    if (results_expected_ >= window_ && result_arrived_[results_expected_ - window_] == 0) return;
    const auto range = piece(results_expected_, 1);
    receive(address_of(range), range.length * element(), previous(), Channel::results,
            &result_arrived_[results_expected_]);
  }
}

void RingReduction::send_results() {
  const auto is_final = [&](std::size_t message) {
    return message < pieces_ ? sums_added_ > messages_ - pieces_ + message
                             : result_arrived_[message - pieces_] != 0;
  };
  for (; results_begun_ < messages_ && is_final(results_begun_); ++results_begun_) {
    if (results_begun_ >= window_ && result_sent_[results_begun_ - window_] == 0) return;
    const auto range = piece(results_begun_, 0);
    send(address_of(range), range.length * element(), next(), Channel::results,
         &result_sent_[results_begun_]);
  }
}

}  // namespace

bool allows_partial_sums(const Operation& operation) {
  // 16-bit partial sums would be rounded at every rank, and the average of integers is not a
  // multiplication by 1/N.
  if (operation.wire) return false;
  switch (operation.dtype) {
    case DType::f16:
    case DType::bf16:
      return false;
    case DType::f32:
    case DType::f64:
      return true;
    default:
      return operation.reduce != ReduceOp::avg;
  }
}

std::unique_ptr<Transfer> make_ring_reduction(GroupTransport transport,
                                              const Operation& operation) {
  return std::make_unique<RingReduction>(transport, operation);
}

}  // namespace lockstep::messages
