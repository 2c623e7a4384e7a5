#include <algorithm>
#include <array>
#include <cstring>

#include "lockstep/comm/mpi/transfer.h"
#include "lockstep/kernels/reduce.h"

namespace lockstep::mpi {
namespace {

/// Piece by piece, partial sums pass from rank 0 to the last, each adding its own, so that every
/// sum is one in rank order; the results pass on from the last over rank 0 to all but the last.
class RingReduction final : public Transfer {
 public:
  RingReduction(const MpiCommunicator& group, const Operation& operation);

  void advance() override;
  bool begun() const override { return sums_begun_ == pieces_ && results_ == pieces_; }

 private:
  static constexpr std::size_t window = 8;
  static constexpr std::size_t piece_bytes = 256 << 10;

  bool first() const { return rank() == 0; }
  bool last() const { return rank() == size() - 1; }
  int next() const { return (rank() + 1) % size(); }
  int before() const { return (rank() + size() - 1) % size(); }
  std::size_t length(std::size_t piece) const {
    return std::min(piece_elements_, operation().count - piece * piece_elements_);
  }
  std::byte* own(std::size_t piece) const {
    return operation().output + piece * piece_elements_ * element();
  }
  std::byte* staged(std::size_t piece) const {
    return staging_.get() + piece % window * piece_elements_ * element();
  }

  void pass_sums();
  void pass_results();
  void add(std::size_t piece);

  std::size_t piece_elements_;
  std::size_t pieces_;
  std::unique_ptr<std::byte[]> staging_;  ///< partial sums of the window
  std::vector<std::byte> factor_;         ///< 1/N for each element of a piece, for avg
  std::size_t expected_ = 0;              ///< pieces whose partial sum may come
  std::size_t sums_begun_ = 0;            ///< pieces whose sum this rank has passed on
  std::size_t results_awaited_ = 0;
  std::size_t results_ = 0;  ///< pieces whose result is here, and passed on
  std::vector<std::uint8_t> sum_here_;
  std::vector<std::uint8_t> sum_left_;
  std::vector<std::uint8_t> result_here_;
};

RingReduction::RingReduction(const MpiCommunicator& group, const Operation& operation)
    : Transfer(group, operation) {
  piece_elements_ = std::min(piece_bytes / element(), operation.count);
  pieces_ = (operation.count + piece_elements_ - 1) / piece_elements_;
  staging_ = std::make_unique_for_overwrite<std::byte[]>(window * piece_elements_ * element());
  for (auto* flags : {&sum_here_, &sum_left_, &result_here_}) flags->resize(pieces_);
  if (last() && operation.reduce == ReduceOp::avg) {
    factor_.resize(piece_elements_ * element());
    const float single = 1.0f / static_cast<float>(size());
    const double twice = 1.0 / static_cast<double>(size());
    for (std::size_t i = 0; i < piece_elements_; ++i) {
      const void* from = operation.dtype == DType::f32 ? static_cast<const void*>(&single)
                                                       : static_cast<const void*>(&twice);
      std::memcpy(factor_.data() + i * element(), from, element());
    }
  }
}

void RingReduction::advance() {
  pass_sums();
  pass_results();
}

void RingReduction::pass_sums() {
  if (!first()) {
    // A place is free again once its sum has left; the last rank needs it no longer than it adds.
    const auto free = [&](std::size_t piece) {
      return piece < window ||
             (last() ? sums_begun_ > piece - window : sum_left_[piece - window] != 0);
    };
    for (; expected_ < pieces_ && free(expected_); ++expected_) {
      receive(staged(expected_), length(expected_) * element(), before(), Channel::parts,
              &sum_here_[expected_]);
    }
  }
  for (; sums_begun_ < pieces_; ++sums_begun_) {
    const std::size_t piece = sums_begun_;
    if (first()) {
      if (piece >= window && sum_left_[piece - window] == 0) return;
    } else {
      if (sum_here_[piece] == 0) return;
      add(piece);
    }
    if (last()) {
      result_here_[piece] = 1;
    } else {
      send(first() ? own(piece) : staged(piece), length(piece) * element(), next(), Channel::parts,
           &sum_left_[piece]);
    }
  }
}

void RingReduction::add(std::size_t piece) {
  const std::array<const std::byte*, 2> inputs{staged(piece), own(piece)};
  std::byte* output = last() ? own(piece) : staged(piece);
  const bool average = operation().reduce == ReduceOp::avg;
  kernels::reduce(operation().dtype, average ? ReduceOp::sum : operation().reduce, inputs,
                  {&output, 1}, length(piece));
  if (factor_.empty()) return;
  const std::array<const std::byte*, 2> factors{output, factor_.data()};
  kernels::reduce(operation().dtype, ReduceOp::product, factors, {&output, 1}, length(piece));
}

void RingReduction::pass_results() {
  if (!last()) {
    // A result comes to the place of the own part, which must have left.
    for (; results_awaited_ < sums_begun_ && sum_left_[results_awaited_] != 0; ++results_awaited_) {
      receive(own(results_awaited_), length(results_awaited_) * element(), before(),
              Channel::results, &result_here_[results_awaited_]);
    }
  }
  const bool passes_on = next() != size() - 1;
  for (; results_ < pieces_ && result_here_[results_] != 0; ++results_) {
    if (passes_on) send(own(results_), length(results_) * element(), next(), Channel::results);
  }
}

}  // namespace

bool sums_in_parts(const Operation& operation) {
  // Halves would be rounded at every rank, and the average of integers is no product.
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

std::unique_ptr<Transfer> make_ring_reduction(const MpiCommunicator& group,
                                              const Operation& operation) {
  return std::make_unique<RingReduction>(group, operation);
}

}  // namespace lockstep::mpi
