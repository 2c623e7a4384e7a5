#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "averaging/average.h"
#include "comm/communicator.h"
#include "kernels/reduce_rounded.h"

namespace lockstep::inline v0_2::averaging {
namespace {

/// Elements of each rank's part. The last parts may be shorter than `part`, or empty.
std::vector<std::size_t> counts_of_parts(std::size_t count, std::size_t part, int ranks) {
  std::vector<std::size_t> counts;
  for (int rank = 0; rank < ranks; ++rank) {
    counts.push_back(std::min(count, part));
    count -= counts.back();
  }
  return counts;
}

class FullPrecisionAverage final : public Average {
 public:
  ExchangeTask exchange(std::int64_t, Elements elements, Communicator& group) override {
    co_await group.all_reduce(elements.data, elements.count, elements.dtype, ReduceOp::avg,
                              issue_of(elements));
  }
  bool is_all_reduce() const override { return true; }

  bool has_parts() const override { return true; }
  ExchangeTask exchange_part(std::int64_t, Elements elements, Elements part,
                             Communicator& group) override {
    auto issue = issue_of(elements);
    issue.owner = std::make_shared<std::pair<Elements, Elements>>(elements, part);
    co_await group.reduce_scatter(elements.data, part.data,
                                  counts_of_parts(elements.count, part.count, group.size()),
                                  elements.dtype, ReduceOp::avg, std::move(issue));
  }
};

class ReducedPrecisionAverage final : public Average {
 public:
  explicit ReducedPrecisionAverage(const Wire& wire) : wire_(wire) {}

  ExchangeTask exchange(std::int64_t, Elements elements, Communicator& group) override {
    co_await group.all_reduce(elements.data, elements.count, ReduceOp::avg, wire_,
                              issue_of(elements));
  }
  bool is_all_reduce() const override { return true; }

  bool has_parts() const override { return true; }
  /// Each rank sends every other rank its rounded values of that rank's part.
  ExchangeTask exchange_part(std::int64_t, Elements elements, Elements part,
                             Communicator& group) override {
    const auto ranks = static_cast<std::size_t>(group.size());
    const auto part_bytes = part.count * size_of(wire_.dtype);
    const Buffer own(group, part_bytes * ranks);
    const Buffer received(group, part_bytes * ranks);
    const auto used = elements.count * size_of(wire_.dtype);
    std::memset(own.data() + used, 0, own.bytes() - used);
    kernels::round_to_halves(wire_, ReduceOp::avg, ranks,
                             static_cast<const std::byte*>(elements.data), own.data(),
                             elements.count);
    co_await all_to_all(group, received, own);
    std::vector<const std::byte*> inputs;
    for (std::size_t rank = 0; rank < ranks; ++rank)
      inputs.push_back(received.data() + rank * part_bytes);
    std::byte* const mean = own.data();
    kernels::reduce_halves(wire_, ReduceOp::avg, inputs, {&mean, 1}, part.count);
    kernels::widen_halves(wire_, mean, static_cast<std::byte*>(part.data), part.count);
  }

 private:
  Wire wire_;
};

}  // namespace

std::unique_ptr<Average> create(const AllReduce&, const Elements&, const Arrays&, Communicator&) {
  return std::make_unique<FullPrecisionAverage>();
}

std::unique_ptr<Average> create(const Fp16& strategy, const Elements& elements,
                                const Arrays& arrays, Communicator&) {
  strategy.check();
  expect_dtype("fp16", elements, arrays, {DType::f32});
  return std::make_unique<ReducedPrecisionAverage>(Wire{.dtype = DType::f16,
                                                        .clip = static_cast<float>(strategy.clip),
                                                        .predivide = strategy.predivide});
}

std::unique_ptr<Average> create(const Bf16&, const Elements& elements, const Arrays& arrays,
                                Communicator&) {
  expect_dtype("bf16", elements, arrays, {DType::f32});
  return std::make_unique<ReducedPrecisionAverage>(Wire{.dtype = DType::bf16, .predivide = true});
}

}  // namespace lockstep::averaging
