#include <gtest/gtest.h>

#include "lockstep/strategies.h"
#include "tests/sync/reference.h"

// When and what: targets of steps and buckets, and warm-up.

namespace lockstep::testing {
namespace {

TEST(PartialUpdate, TakesEachBucketOnceInTurn) {
  using enum SyncTarget;
  const Strategy strategy = PartialUpdate{};
  EXPECT_FALSE(strategy.exchanges_every_gradient());
  for (const std::size_t buckets : {1, 2, 5}) {
    for (std::int64_t step = 0; step < 11; ++step) {
      for (std::size_t bucket = 0; bucket < buckets; ++bucket) {
        const bool turn = static_cast<std::size_t>(step) % buckets == bucket;
        EXPECT_EQ(strategy.target(step, bucket, buckets), turn ? parameters : none);
      }
    }
  }
  EXPECT_EQ(Strategy(PartialUpdate{.of = gradients}).target(3, 1, 2), gradients);
}

TEST(LocalSgd, AveragesAfterEveryPeriod) {
  using enum SyncTarget;
  const Strategy strategy = LocalSgd{.period = 3};
  std::vector<SyncTarget> targets;
  for (int step = 0; step < 6; ++step) targets.push_back(strategy.target(step, 1, 4));
  EXPECT_EQ(targets, (std::vector{none, none, parameters, none, none, parameters}));
  EXPECT_EQ(Strategy(LocalSgd{.period = 1}).target(0, 0, 1), parameters);
}

TEST(PostLocalSgd, BeginsWithGradients) {
  using enum SyncTarget;
  const Strategy strategy = PostLocalSgd{.start = 2, .period = 2};
  std::vector<SyncTarget> targets;
  for (int step = 0; step < 6; ++step) targets.push_back(strategy.target(step, 0, 1));
  EXPECT_EQ(targets, (std::vector{gradients, gradients, none, parameters, none, parameters}));
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
  std::vector<SyncTarget> targets;
  for (int step = 0; step < 7; ++step) targets.push_back(later.target(step, 0, 1));
  EXPECT_EQ(targets,
            (std::vector{gradients, gradients, gradients, none, parameters, none, parameters}));
  EXPECT_FALSE(later.exchanges_every_gradient());
  EXPECT_TRUE(warmup(TopK{}, 3).exchanges_every_gradient());
  EXPECT_EQ(later.text(), "warmup:3:local_sgd:period=2");
}

TEST(Warmup, ChangesTheExchangeAfterItsSteps) {
  spawn(2, [](const Group& group) {
    Bucket bucket(0, 100, at::kFloat, {}, group);
    const auto exchange = warmup(TopK{.ratio = 0.01, .ramp = 4}, 2).exchange(bucket);
    // Whole at first, then 25 % and 6.25 % of the ramp, whose steps begin at its own.
    const std::vector<std::uint64_t> sent{400, 800, 1000, 1056};
    for (std::size_t step = 0; step < sent.size(); ++step) {
      bucket.values().fill_(1);
      advance(*exchange, static_cast<std::int64_t>(step), bucket, group);
      EXPECT_EQ(bytes_sent(group), sent[step]) << step;
    }
    EXPECT_EQ(exchange->state().size(), 1U);
    exchange->load(exchange->state());
  });
}

}  // namespace
}  // namespace lockstep::testing
