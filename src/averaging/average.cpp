#include "averaging/average.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "core/failure.h"
#include "core/text.h"
#include "join/record_errors.h"
#include "kernels/reduce.h"

namespace lockstep::inline v0_2::averaging {

using detail::concat;

namespace {

Issue issue_of(const Buffer& input, const Buffer& output) {
  return {.owner = std::make_shared<std::pair<Buffer, Buffer>>(input, output)};
}

}  // namespace

Buffer::Buffer(Communicator& group, std::size_t bytes)
    : memory_(group.allocate(std::max<std::size_t>(bytes, 1))), bytes_(bytes) {}

void Buffer::fill_with_zeros() const {
  if (bytes_ > 0) std::memset(memory_.get(), 0, bytes_);
}

Work all_gather(Communicator& group, const Buffer& output, const Buffer& input) {
  return group.all_gather(input.data(), output.data(), input.bytes(), DType::u8,
                          issue_of(input, output));
}

Work all_gather(Communicator& group, const Buffer& output, const Buffer& input,
                std::span<const std::size_t> bytes) {
  return group.all_gather(input.data(), output.data(), bytes, DType::u8, issue_of(input, output));
}

Work all_to_all(Communicator& group, const Buffer& output, const Buffer& input) {
  return group.all_to_all(input.data(), output.data(),
                          input.bytes() / static_cast<std::size_t>(group.size()), DType::u8,
                          issue_of(input, output));
}

Average::Average(bool error_feedback, const Averaged& averaged) : arrays_(averaged.arrays) {
  if (!error_feedback) return;
  const auto& elements = averaged.elements;
  residual_ = Buffer(averaged.group, elements.count * size_of(elements.dtype));
  residual_.fill_with_zeros();
}

Issue issue_of(const Elements& elements) {
  return {.shape = {static_cast<std::int64_t>(elements.count)}, .owner = elements.owner};
}

InvalidArgument not_finite_error(const std::string& text, int rank, const Communicator& group) {
  const InvalidArgument error(text, {.rank = group.world_rank(rank),
                                     .cause = rank == group.rank() ? std::string() : text,
                                     .cause_kind = ErrorKind::invalid_argument});
  // A program that prints the error and ends may not call record_error().
  auto record = detail::record_of(error);
  record.raised = true;
  detail::record_in_world(record);
  return error;
}

void refuse_not_finite(std::string_view strategy, const std::string& name, int rank,
                       const Communicator& group) {
  throw not_finite_error(concat("strategy ", strategy, ": the gradient of ", name, " on rank ",
                                rank, " has NaN or Inf, expected finite numbers"),
                         rank, group);
}

void expect_dtype(std::string_view strategy, const Averaged& averaged,
                  std::initializer_list<DType> supported) {
  const auto& [elements, arrays, group] = averaged;
  if (std::ranges::count(supported, elements.dtype) > 0) return;
  const auto expected = detail::joined(supported, " or ", [](DType dtype) { return name(dtype); });
  throw InvalidArgument(concat("strategy ", strategy, ": got ", name(elements.dtype),
                               " elements of ", arrays.name_at(0), ", expected ", expected, ": ",
                               arrays.remedy));
}

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

std::unique_ptr<Average> create(const AllReduce&, const Averaged&) {
  return std::make_unique<FullPrecisionAverage>();
}

std::unique_ptr<Average> create(const Fp16& strategy, const Averaged& averaged) {
  strategy.check();
  expect_dtype("fp16", averaged, {DType::f32});
  return std::make_unique<ReducedPrecisionAverage>(Wire{.dtype = DType::f16,
                                                        .clip = static_cast<float>(strategy.clip),
                                                        .predivide = strategy.predivide});
}

std::unique_ptr<Average> create(const Bf16&, const Averaged& averaged) {
  expect_dtype("bf16", averaged, {DType::f32});
  return std::make_unique<ReducedPrecisionAverage>(Wire{.dtype = DType::bf16, .predivide = true});
}

}  // namespace lockstep::averaging
