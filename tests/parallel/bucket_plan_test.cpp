#include "parallel/buckets/bucket_plan.h"

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "tests/matchers.h"

namespace lockstep::testing {
namespace {

using Slices = std::vector<PlannedBucket::Slice>;

/// The parameters and offsets of each bucket.
std::vector<Slices> planned(const std::vector<ParameterSpec>& parameters,
                            const BucketCaps& caps = {}) {
  std::vector<Slices> buckets;
  for (const auto& bucket : bucket_plan(parameters, caps)) buckets.push_back(bucket.slices);
  return buckets;
}

TEST(BucketPlan, GoesBackwardsAndAligns) {
  EXPECT_THAT(planned({{.numel = 5}, {.numel = 16}, {.numel = 17}}),
              ElementsAre(Slices{{2, 0}, {1, 32}, {0, 48}}));
}

TEST(BucketPlan, HasASmallerFirstBucket) {
  const std::vector<ParameterSpec> parameters(12, {.numel = 16});  // 64 bytes each
  EXPECT_THAT(planned(parameters, {.first = 128, .rest = 320}),
              ElementsAre(SizeIs(2), SizeIs(5), SizeIs(5)));
}

// The large one is ready soon after: behind it the rest of the backward still runs.
TEST(BucketPlan, SendsTheFirstBucketOnceItHasEnough) {
  const auto plan = planned({{.numel = 500},
                             {.numel = 20},
                             {.numel = 25'000},
                             {.numel = 50},
                             {.numel = 400'000},
                             {.numel = 500},
                             {.numel = 5000},
                             {.numel = 10}});
  ASSERT_EQ(plan.size(), 2U);
  EXPECT_EQ(plan[0].back().parameter, 4U);
  EXPECT_EQ(plan[1].front().parameter, 3U);
  EXPECT_EQ(planned({{.numel = 10'000'000}, {.numel = 10}}).size(), 2U);  // larger than any bucket
}

// A layer's bias is ready when its weight is: it would hold up the large weight before it.
TEST(BucketPlan, LeavesSmallParametersBehindALargeOneToTheNextBucket) {
  const BucketCaps caps{.first = 4000, .rest = 4000};
  EXPECT_THAT(
      planned({{.numel = 800}, {.numel = 16}, {.numel = 100}, {.numel = 8}, {.numel = 900}}, caps),
      ElementsAre(Slices{{4, 0}}, Slices{{3, 0}, {2, 16}, {1, 128}, {0, 144}}));
  EXPECT_THAT(planned({{.numel = 2000}, {.numel = 16}, {.numel = 900}}, caps),
              ElementsAre(Slices{{2, 0}}, Slices{{1, 0}}, Slices{{0, 0}}));
}

TEST(BucketPlan, HoldsItsPromisesForRandomLists) {
  std::mt19937 random(1);
  const at::ScalarType dtypes[] = {at::kFloat, at::kDouble, at::kHalf};
  for (int round = 0; round < 200; ++round) {
    std::vector<ParameterSpec> parameters(random() % 40);
    for (auto& parameter : parameters) {
      parameter = {
          .numel = random() % 300, .dtype = dtypes[random() % 3], .strategy = random() % 2};
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
        EXPECT_EQ(parameters[place.parameter].strategy, bucket.strategy);
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
}  // namespace lockstep::testing
