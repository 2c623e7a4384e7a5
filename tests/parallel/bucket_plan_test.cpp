#include "parallel/buckets/bucket_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

namespace {

using lockstep::bucket_plan;
using lockstep::BucketCaps;
using lockstep::ParameterSpec;
using lockstep::PlannedBucket;

using Slices = std::vector<PlannedBucket::Slice>;

TEST(BucketPlan, GoesBackwardsAndAligns) {
  const std::vector<ParameterSpec> parameters{{.numel = 5}, {.numel = 16}, {.numel = 17}};
  const auto plan = bucket_plan(parameters, {});
  ASSERT_EQ(plan.size(), 1U);
  EXPECT_EQ(plan[0].slices, (Slices{{2, 0}, {1, 32}, {0, 48}}));
  EXPECT_EQ(plan[0].numel, 53U);
}

TEST(BucketPlan, HasASmallerFirstBucket) {
  const std::vector<ParameterSpec> parameters(12, {.numel = 16});  // 64 bytes each
  const auto plan = bucket_plan(parameters, {.first = 128, .rest = 320});
  ASSERT_EQ(plan.size(), 3U);
  EXPECT_EQ(plan[0].slices.size(), 2U);
  EXPECT_EQ(plan[1].slices.size(), 5U);
  EXPECT_EQ(plan[2].slices.size(), 5U);
}

// The large one is ready soon after: behind it the rest of the backward still runs.
TEST(BucketPlan, SendsTheFirstBucketOnceItHasEnough) {
  const std::vector<ParameterSpec> cnn{{.numel = 500},  {.numel = 20},      {.numel = 25'000},
                                       {.numel = 50},   {.numel = 400'000}, {.numel = 500},
                                       {.numel = 5000}, {.numel = 10}};
  const auto plan = bucket_plan(cnn, {});
  ASSERT_EQ(plan.size(), 2U);
  EXPECT_EQ(plan[0].slices.back().parameter, 4U);
  EXPECT_EQ(plan[1].slices.front().parameter, 3U);

  const std::vector<ParameterSpec> larger_than_any{{.numel = 10'000'000}, {.numel = 10}};
  EXPECT_EQ(bucket_plan(larger_than_any, {}).size(), 2U);
}

// A layer's bias is ready when its weight is: it would hold up the large weight before it.
TEST(BucketPlan, LeavesSmallParametersBehindALargeOneToTheNextBucket) {
  const std::vector<ParameterSpec> layers{
      {.numel = 800}, {.numel = 16}, {.numel = 100}, {.numel = 8}, {.numel = 900}};
  const auto plan = bucket_plan(layers, {.first = 4000, .rest = 4000});
  ASSERT_EQ(plan.size(), 2U);
  EXPECT_EQ(plan[0].slices, (Slices{{4, 0}}));
  EXPECT_EQ(plan[0].numel, 900U);
  EXPECT_EQ(plan[1].slices, (Slices{{3, 0}, {2, 16}, {1, 128}, {0, 144}}));

  const std::vector<ParameterSpec> too_large{{.numel = 2000}, {.numel = 16}, {.numel = 900}};
  const auto apart = bucket_plan(too_large, {.first = 4000, .rest = 4000});
  ASSERT_EQ(apart.size(), 3U);
  EXPECT_EQ(apart[0].slices, (Slices{{2, 0}}));
  EXPECT_EQ(apart[1].slices, (Slices{{1, 0}}));
  EXPECT_EQ(apart[2].slices, (Slices{{0, 0}}));
}

TEST(BucketPlan, KeepsDtypesAndStrategiesApart) {
  const std::vector<ParameterSpec> parameters{{.numel = 1, .dtype = at::kFloat},
                                              {.numel = 2, .dtype = at::kDouble},
                                              {.numel = 3, .dtype = at::kFloat},
                                              {.numel = 4, .dtype = at::kFloat, .strategy = 1},
                                              {.numel = 5, .dtype = at::kHalf}};
  const auto plan = bucket_plan(parameters, {});
  ASSERT_EQ(plan.size(), 4U);
  // In the order in which the last gradient of each is expected.
  EXPECT_EQ(plan[0].slices, (Slices{{4, 0}}));
  EXPECT_EQ(plan[0].dtype, at::kHalf);
  EXPECT_EQ(plan[1].slices, (Slices{{3, 0}}));
  EXPECT_EQ(plan[1].strategy, 1U);
  EXPECT_EQ(plan[2].slices, (Slices{{1, 0}}));
  EXPECT_EQ(plan[2].dtype, at::kDouble);
  EXPECT_EQ(plan[3].slices, (Slices{{2, 0}, {0, 16}}));
}

TEST(BucketPlan, TakesEmptyParameters) {
  const std::vector<ParameterSpec> parameters{{.numel = 0}, {.numel = 3}, {.numel = 0}};
  const auto plan = bucket_plan(parameters, {});
  ASSERT_EQ(plan.size(), 1U);
  EXPECT_EQ(plan[0].slices, (Slices{{2, 0}, {1, 0}, {0, 16}}));
  EXPECT_EQ(bucket_plan(std::vector<ParameterSpec>{{.numel = 0}}, {})[0].numel, 0U);
}

TEST(BucketPlan, HoldsItsPromisesForRandomLists) {
  std::mt19937 random(1);
  const at::ScalarType dtypes[] = {at::kFloat, at::kDouble, at::kHalf};
  for (int round = 0; round < 200; ++round) {
    std::vector<ParameterSpec> parameters(random() % 40);
    for (auto& parameter : parameters) {
      parameter = {.numel = random() % 300, .dtype = dtypes[random() % 3]};
    }
    const BucketCaps caps{.first = random() % 1000, .rest = random() % 4000};
    const auto plan = bucket_plan(parameters, caps);
    std::set<std::size_t> seen;
    std::size_t previous_last = parameters.size();
    for (const auto& bucket : plan) {
      ASSERT_FALSE(bucket.slices.empty());
      std::size_t end = 0;
      for (const auto& place : bucket.slices) {
        EXPECT_TRUE(seen.insert(place.parameter).second);
        EXPECT_EQ(parameters[place.parameter].dtype, bucket.dtype);
        EXPECT_GE(place.offset, end);
        EXPECT_EQ(place.offset * c10::elementSize(bucket.dtype) % 64, 0U);
        end = place.offset + parameters[place.parameter].numel;
      }
      EXPECT_EQ(bucket.numel, end);
      if (bucket.slices.size() > 1) {
        EXPECT_LE(end * c10::elementSize(bucket.dtype), std::max(caps.first, caps.rest));
      }
      EXPECT_LT(bucket.slices.back().parameter, previous_last);
      previous_last = bucket.slices.back().parameter;
    }
    EXPECT_EQ(seen.size(), parameters.size());
  }
}

}  // namespace
