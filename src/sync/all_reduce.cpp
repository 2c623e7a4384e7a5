#include <limits>

#include "kernels/magnitude.h"
#include "lockstep/strategies.h"
#include "sync/bucket_layout.h"
#include "sync/fields.h"

namespace lockstep::inline v0_2 {
namespace {

class Mean final : public Exchange {
 public:
  ExchangeTask exchange(std::int64_t, Bucket& bucket, const Group& group) override {
    co_await group.all_reduce(bucket.values(), ReduceOp::avg);
  }
  bool is_all_reduce() const override { return true; }
};

}  // namespace

std::unique_ptr<Exchange> AllReduce::exchange(const Bucket&) const {
  return std::make_unique<Mean>();
}

namespace {

class RoundedMean final : public Exchange {
 public:
  explicit RoundedMean(const Wire& wire) : wire_(wire) {}

  ExchangeTask exchange(std::int64_t, Bucket& bucket, const Group& group) override {
    co_await group.all_reduce(bucket.values(), ReduceOp::avg, wire_);
  }
  bool is_all_reduce() const override { return true; }

 private:
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
  // A clip that float32 turns into 0 would clip nothing. A comparison could flush the clip itself.
  const bool small = detail::magnitude(clip) > 0 && static_cast<float>(clip) == 0;
  detail::expect(clip >= 0 && clip <= std::numeric_limits<float>::max() && !small, "fp16", "clip",
                 clip, "0 for none, or the largest magnitude, as float32 can hold it");
}

std::unique_ptr<Exchange> Fp16::exchange(const Bucket& bucket) const {
  check();
  detail::expect_dtype("fp16", bucket, {at::kFloat});
  return std::make_unique<RoundedMean>(
      Wire{.dtype = DType::f16, .clip = static_cast<float>(clip), .predivide = predivide});
}

std::unique_ptr<Exchange> Bf16::exchange(const Bucket& bucket) const {
  detail::expect_dtype("bf16", bucket, {at::kFloat});
  return std::make_unique<RoundedMean>(Wire{.dtype = DType::bf16, .predivide = true});
}

}  // namespace lockstep
