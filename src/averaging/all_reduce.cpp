#include <limits>

#include "averaging/average.h"
#include "averaging/fields.h"
#include "comm/communicator.h"
#include "kernels/magnitude.h"

namespace lockstep::inline v0_2 {

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

}  // namespace lockstep

namespace lockstep::inline v0_2::averaging {
namespace {

class FullPrecisionAverage final : public Average {
 public:
  ExchangeTask exchange(std::int64_t, Elements elements, Communicator& group) override {
    co_await group.all_reduce(elements.data, elements.count, elements.dtype, ReduceOp::avg,
                              issue_of(elements));
  }
  bool is_all_reduce() const override { return true; }
};

class ReducedPrecisionAverage final : public Average {
 public:
  explicit ReducedPrecisionAverage(const Wire& wire) : wire_(wire) {}

  ExchangeTask exchange(std::int64_t, Elements elements, Communicator& group) override {
    co_await group.all_reduce(elements.data, elements.count, ReduceOp::avg, wire_,
                              issue_of(elements));
  }
  bool is_all_reduce() const override { return true; }

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
