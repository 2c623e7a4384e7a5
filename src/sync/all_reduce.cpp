#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "kernels/magnitude.h"
#include "kernels/reduce_rounded.h"
#include "lockstep/strategies.h"
#include "sync/bucket_layout.h"
#include "sync/fields.h"

namespace lockstep::inline v0_2 {
namespace {

/// Elements of each rank's part. The last parts may be shorter than `part`, or empty.
std::vector<std::size_t> counts_of_parts(const at::Tensor& values, const at::Tensor& part,
                                         int ranks) {
  std::vector<std::size_t> counts;
  auto left = static_cast<std::size_t>(values.numel());
  for (int rank = 0; rank < ranks; ++rank) {
    counts.push_back(std::min(left, static_cast<std::size_t>(part.numel())));
    left -= counts.back();
  }
  return counts;
}

class AllReduceExchange final : public Exchange {
 public:
  ExchangeTask exchange(std::int64_t, Bucket& bucket, const Group& group) override {
    co_await group.all_reduce(bucket.values(), ReduceOp::avg);
  }
  bool is_all_reduce() const override { return true; }

  bool has_parts() const override { return true; }
  ExchangeTask exchange_part(std::int64_t, Bucket& bucket, const at::Tensor& part,
                             const Group& group) override {
    const auto counts = counts_of_parts(bucket.values(), part, group.size());
    const auto own = counts[static_cast<std::size_t>(group.rank())];
    co_await group.reduce_scatter(part.narrow(0, 0, static_cast<std::int64_t>(own)),
                                  bucket.values(), counts, ReduceOp::avg);
  }
};

}  // namespace

std::unique_ptr<Exchange> AllReduce::exchange(const Bucket&) const {
  return std::make_unique<AllReduceExchange>();
}

namespace {

class ReducedPrecisionExchange final : public Exchange {
 public:
  explicit ReducedPrecisionExchange(const Wire& wire) : wire_(wire) {}

  ExchangeTask exchange(std::int64_t, Bucket& bucket, const Group& group) override {
    co_await group.all_reduce(bucket.values(), ReduceOp::avg, wire_);
  }
  bool is_all_reduce() const override { return true; }

  bool has_parts() const override { return true; }
  /// Each rank sends every other rank its rounded values of that rank's part.
  ExchangeTask exchange_part(std::int64_t, Bucket& bucket, const at::Tensor& part,
                             const Group& group) override {
    const auto ranks = static_cast<std::size_t>(group.size());
    const auto length = static_cast<std::size_t>(part.numel());
    const auto half = wire_.dtype == DType::f16 ? at::kHalf : at::kBFloat16;
    const auto own = group.empty({part.numel() * group.size()}, half);
    const auto received = group.empty({part.numel() * group.size()}, half);
    own.narrow(0, bucket.values().numel(), own.numel() - bucket.values().numel()).zero_();
    kernels::round_to_halves(wire_, ReduceOp::avg, ranks, bytes(bucket.values()), bytes(own),
                             static_cast<std::size_t>(bucket.values().numel()));
    co_await group.all_to_all(received, own);
    std::vector<const std::byte*> inputs;
    for (std::size_t rank = 0; rank < ranks; ++rank)
      inputs.push_back(bytes(received) + rank * length * size_of(wire_.dtype));
    std::byte* const mean = bytes(own);
    kernels::reduce_halves(wire_, ReduceOp::avg, inputs, {&mean, 1}, length);
    kernels::widen_halves(wire_, mean, bytes(part), length);
  }

 private:
  static std::byte* bytes(const at::Tensor& tensor) {
    return static_cast<std::byte*>(tensor.data_ptr());
  }

  Wire wire_;
};

}  // namespace

std::string Fp16::text() const {
  std::string text = "fp16";
  if (clip != 0) text += ":clip=" + detail::shortest(clip);
  if (!predivide) text += clip != 0 ? ",predivide=off" : ":predivide=off";
  return text;
}

void Fp16::check() const {
  // A clip that rounds to 0 in float32 would disable clipping. magnitude() compares denormals even
  // where they are flushed.
  const bool rounds_to_zero = detail::magnitude(clip) > 0 && static_cast<float>(clip) == 0;
  detail::expect(clip >= 0 && clip <= std::numeric_limits<float>::max() && !rounds_to_zero, "fp16",
                 "clip", clip, "0 for no clipping, or a positive float32 number");
}

std::unique_ptr<Exchange> Fp16::exchange(const Bucket& bucket) const {
  check();
  detail::expect_dtype("fp16", bucket, {at::kFloat});
  return std::make_unique<ReducedPrecisionExchange>(
      Wire{.dtype = DType::f16, .clip = static_cast<float>(clip), .predivide = predivide});
}

std::unique_ptr<Exchange> Bf16::exchange(const Bucket& bucket) const {
  detail::expect_dtype("bf16", bucket, {at::kFloat});
  return std::make_unique<ReducedPrecisionExchange>(Wire{.dtype = DType::bf16, .predivide = true});
}

}  // namespace lockstep
