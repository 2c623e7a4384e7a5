#include "lockstep/strategy.h"

#include <sstream>

#include "tests/other_numbers.h"
#include "tests/refusal.h"
#include "tests/sync/reference.h"

namespace lockstep::testing {
namespace {

std::string parsed(std::string_view text) { return parse_strategy(text).text(); }

TEST(Strategy, ParsesItsOwnText) {
  std::istringstream texts(
      "fp32 fp16 fp16:predivide=off fp16:clip=0.5,predivide=off bf16 topk:0.01 "
      "topk:0.001,feedback=off,ramp=400 threshold:0,feedback=off int8 int8:feedback=off "
      "power_sgd:rank=4 power_sgd:rank=2,feedback=off,warm_start=off partial_update "
      "partial_update:of=gradients local_sgd:period=8 adasum adasum:of=gradients "
      "warmup:1:warmup:2:fp16:clip=1");
  for (std::string text; texts >> text;) EXPECT_EQ(parsed(text), text);
}

TEST(Strategy, HasTheSameTextUnderEveryLocale) {
  const OtherNumbers other;
  for (const auto* text :
       {"warmup:100000:topk:0.001,ramp=40000", "threshold:1e-05", "fp16:clip=1234.5",
        "post_local_sgd:start=10000,period=8000", "power_sgd:rank=1000", "local_sgd:period=4000"}) {
    EXPECT_EQ(parsed(text), text);
  }
  EXPECT_THAT(refusal([] { parse_strategy("topk:1234.5"); }), HasSubstr("got a ratio of 1234.5,"));
}

TEST(Strategy, FillsInWhatTheTextDoesNotSayAndKnowsOtherNames) {
  EXPECT_EQ(parsed("topk"), "topk:0.01");
  EXPECT_EQ(parsed("topk:ratio=0.5"), "topk:0.5");
  EXPECT_EQ(parsed("threshold"), "threshold:0.001");
  EXPECT_EQ(parsed("fp16:100"), "fp16:clip=100");
  EXPECT_EQ(parsed("local_sgd"), "local_sgd:period=8");
  EXPECT_EQ(parsed("local_sgd:4"), "local_sgd:period=4");
  EXPECT_EQ(parsed("partial_update:of=parameters"), "partial_update");
  EXPECT_EQ(parsed("fp32:"), "fp32");
  // SINGA's, and those before version 0.2.
  EXPECT_EQ(parsed("powersgd:rank=2"), "power_sgd:rank=2");
  EXPECT_EQ(parsed("warmup:2:powersgd:rank=2"), "warmup:2:power_sgd:rank=2");
  EXPECT_EQ(parsed("partialUpdate:of=gradients"), "partial_update:of=gradients");
  EXPECT_EQ(parsed("plain"), "fp32");
  EXPECT_EQ(parsed("half"), "fp16");
  EXPECT_EQ(parsed("sparseTopK:0.05"), "topk:0.05");
  EXPECT_EQ(parsed("sparseThreshold:0.05"), "threshold:0.05");
}

void expect_refused(const char* text, const std::string& why) {
  EXPECT_THAT(refusal([&] { parse_strategy(text); }), HasSubstr(why)) << text;
}

TEST(Strategy, RefusesOptionsThatAreWrongAndOtherTexts) {
  expect_refused("fp32:clip=1", "strategy fp32: got field \"clip\", expected no options");
  expect_refused("topk:k=3", "got field \"k\", expected one of: ratio, feedback, ramp");
  expect_refused("topk:0.1,0.2", "got field \"0.2\"");
  expect_refused("topk:0.1,ratio=0.2", "expected the field only once");
  expect_refused("topk:abc", "got ratio=abc, expected a number");
  expect_refused("topk:nan", "expected a number");
  expect_refused("topk:0", "got a ratio of 0, expected more than 0 and at most 1");
  expect_refused("topk:1.5", "at most 1");
  expect_refused("topk:feedback=maybe", "expected off or on");
  expect_refused("topk:ramp=1.5", "expected a whole number");
  expect_refused("threshold:-1", "got a value of -1, expected 0 or more");
  expect_refused("fp16:clip=-1", "got a clip of -1");
  expect_refused("power_sgd:rank=0", "got a rank of 0, expected 1 to 2^20");
  expect_refused("power_sgd:rank=1000000000000000000", "expected 1 to 2^20");
  expect_refused("fp16:clip=1e-300", "positive float32 number");
  std::string nested;
  for (int i = 0; i < 100'000; ++i) nested += "warmup:1:";
  expect_refused((nested + "fp32").c_str(), "expected at most 4096");
  expect_refused("local_sgd:period=0", "got a period of 0");
  expect_refused("post_local_sgd:start=-1", "got a start of -1");
  expect_refused("partial_update:of=buffers", "expected parameters or gradients");
  expect_refused("warmup", "got \"warmup\", expected warmup:STEPS:STRATEGY");
  expect_refused("warmup:", "got \"warmup:\", expected warmup:STEPS:STRATEGY");
  expect_refused("sparseTopK:k=3", "strategy sparseTopK: got field \"k\"");
  expect_refused("warmup:x:fp16", "expected warmup:STEPS:STRATEGY");
  expect_refused("warmup:-1:fp16", "got a number of steps of -1");
  expect_refused("warmup:10:fp15", "got \"fp15\"");
  for (const auto* text : {"", "fp31", "FP32", "fp32 ", "all_reduce", ":"}) {
    EXPECT_THAT(refusal([&] { parse_strategy(text); }),
                AllOf(HasSubstr("\"" + std::string(text) + "\""),
                      EndsWith("expected one of: fp32, fp16, bf16, topk, threshold, int8, "
                               "power_sgd, partial_update, local_sgd, post_local_sgd, "
                               "adasum, warmup")));
  }
}

TEST_ON_RANKS(AllReduce, LeavesTheMeanInTheBucketAfterOneStage, 3) {
  Bucket bucket(0, 5, at::kFloat, {}, world);
  bucket.values().fill_(world.rank() + 1);
  const auto exchange = Strategy(AllReduce{}).exchange(bucket);
  auto task = exchange->exchange(0, bucket, world);
  EXPECT_FALSE(task.finished());
  task.advance().wait();
  EXPECT_FALSE(task.advance().pending());
  EXPECT_TRUE(task.finished());
  // The group's definition of a mean: the sum in rank order, times 1/3.
  const float mean = (1.0F + 2.0F + 3.0F) * (1.0F / 3.0F);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(bucket.values()[i].item<float>(), mean);
}

TEST_ON_RANKS(Bucket, KeepsTheStridesOfDenseParameters, 1) {
  const auto transposed = at::arange(6, at::kFloat).view({2, 3}).t();
  const auto gaps = at::arange(12, at::kFloat).view({3, 4}).slice(1, 0, 4, 2);
  const auto last = at::empty({2, 3, 4, 5}, at::kFloat).contiguous(at::MemoryFormat::ChannelsLast);
  const auto empty = at::empty({0, 3}, at::kFloat);
  const auto scalar = at::tensor(7.0F);
  const Bucket bucket(2, 256, at::kFloat,
                      {{.name = "transposed", .parameter = transposed, .offset = 0},
                       {.name = "gaps", .parameter = gaps, .offset = 16},
                       {.name = "last", .parameter = last, .offset = 32},
                       {.name = "empty", .parameter = empty, .offset = 160},
                       {.name = "scalar", .parameter = scalar, .offset = 176}},
                      world);
  EXPECT_EQ(bucket.index(), 2U);
  EXPECT_EQ(bucket.values().abs().sum().item<float>(), 0);
  const auto slices = bucket.slices();
  for (const auto& slice : slices) {
    EXPECT_EQ(slice.values.sizes(), slice.parameter.sizes()) << slice.name;
    EXPECT_FALSE(slice.values.is_view()) << slice.name;
  }
  EXPECT_EQ(slices[0].values.strides(), transposed.strides());
  EXPECT_TRUE(slices[1].values.is_contiguous());
  EXPECT_EQ(slices[2].values.strides(), last.strides());
  slices[2].values.fill_(1);
  EXPECT_EQ(bucket.values().sum().item<float>(), 120);
  EXPECT_EQ(bucket.values().slice(0, 32, 152).sum().item<float>(), 120);
  slices[4].values.fill_(5);
  EXPECT_EQ(bucket.values()[176].item<float>(), 5);
}

// When and what: targets of steps and buckets, and warm-up.

std::vector<SyncTarget> targets_of(const Strategy& strategy, int steps) {
  std::vector<SyncTarget> targets;
  for (int step = 0; step < steps; ++step) targets.push_back(strategy.target(step, 1, 4));
  return targets;
}

TEST(Schedule, KnowsWhetherAStepExchangesParameters) {
  for (const auto& [text, expected] : {std::pair{"fp32", false},
                                       {"topk:0.1", false},
                                       {"partial_update", true},
                                       {"partial_update:of=gradients", false},
                                       {"adasum", true},
                                       {"adasum:of=gradients", false},
                                       {"local_sgd:period=2", true},
                                       {"post_local_sgd", true},
                                       {"warmup:3:int8", false},
                                       {"warmup:3:local_sgd", true},
                                       {"warmup:3:warmup:2:adasum:of=gradients", false}}) {
    EXPECT_EQ(parse_strategy(text).exchanges_parameters(), expected) << text;
  }
  EXPECT_TRUE(parse_strategy("adasum:of=gradients").exchanges_every_gradient());
  EXPECT_FALSE(parse_strategy("adasum").exchanges_every_gradient());
}

TEST(Warmup, TakesTheContentOfItsStrategyAfterwards) {
  using enum SyncTarget;
  const auto later = warmup(LocalSgd{.period = 2}, 3);
  EXPECT_EQ(targets_of(later, 7),
            (std::vector{gradients, gradients, gradients, none, parameters, none, parameters}));
  EXPECT_FALSE(later.exchanges_every_gradient());
  EXPECT_TRUE(warmup(TopK{}, 3).exchanges_every_gradient());
  EXPECT_EQ(later.text(), "warmup:3:local_sgd:period=2");
}

TEST_ON_RANKS(Warmup, ChangesTheExchangeAfterItsSteps, 2) {
  Bucket bucket(0, 100, at::kFloat, {}, world);
  const auto exchange = warmup(TopK{.ratio = 0.01, .ramp = 4}, 2).exchange(bucket);
  // Whole at first, then 25 % and 6.25 % of the ramp, whose steps begin at its own.
  const std::vector<std::uint64_t> sent{400, 800, 1000, 1056};
  for (std::size_t step = 0; step < sent.size(); ++step) {
    bucket.values().fill_(1);
    advance(*exchange, static_cast<std::int64_t>(step), bucket, world);
    EXPECT_EQ(bytes_sent(world), sent[step]) << step;
  }
  EXPECT_EQ(exchange->state().size(), 1U);
  exchange->load(exchange->state());
}

}  // namespace
}  // namespace lockstep::testing
