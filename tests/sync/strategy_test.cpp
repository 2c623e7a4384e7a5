#include "lockstep/sync/strategy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "lockstep/spawn.h"
#include "lockstep/sync/all_reduce.h"

namespace {

using lockstep::Content;
using lockstep::Strategy;

/// A user's own: no base class, a field, and a schedule.
struct EveryOther {
  int period = 2;
  std::string text() const { return "every:" + std::to_string(period); }
  std::unique_ptr<lockstep::Exchange> exchange(const lockstep::Bucket& bucket) const {
    return lockstep::AllReduce{}.exchange(bucket);
  }
  Content content(std::int64_t step, std::size_t, std::size_t) const {
    return step % period == 0 ? Content::parameters : Content::nothing;
  }
};

TEST(Strategy, HoldsARecipe) {
  const Strategy strategy = lockstep::AllReduce{};
  EXPECT_EQ(strategy.text(), "fp32");
  EXPECT_TRUE(strategy.exchanges_every_gradient());
  EXPECT_EQ(strategy.content(5, 1, 3), Content::gradients);
}

TEST(Strategy, HoldsARecipeWithASchedule) {
  const Strategy strategy = EveryOther{.period = 3};
  const Strategy copy = strategy;
  EXPECT_EQ(copy.text(), "every:3");
  EXPECT_FALSE(copy.exchanges_every_gradient());
  EXPECT_EQ(copy.content(3, 0, 1), Content::parameters);
  EXPECT_EQ(copy.content(4, 0, 1), Content::nothing);
}

TEST(Strategy, ParsesItsOwnText) {
  EXPECT_EQ(lockstep::parse_strategy("fp32").text(), "fp32");
  EXPECT_EQ(lockstep::parse_strategy(Strategy(lockstep::AllReduce{}).text()).text(), "fp32");
}

TEST(Strategy, RefusesOtherTexts) {
  for (const auto* text : {"", "fp31", "FP32", "fp32 ", "all_reduce", ":"}) {
    try {
      lockstep::parse_strategy(text);
      ADD_FAILURE() << "parsed \"" << text << '"';
    } catch (const lockstep::InvalidArgument& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("expected one of: fp32"));
      EXPECT_THAT(error.what(), testing::HasSubstr("\"" + std::string(text) + "\""));
    }
  }
  EXPECT_THROW(lockstep::parse_strategy("fp32:clip=1"), lockstep::InvalidArgument);
}

TEST(AllReduce, LeavesTheMeanInTheBucketAfterOneStage) {
  lockstep::spawn(3, [](const lockstep::Group& group) {
    lockstep::Bucket bucket(0, 5, at::kFloat, {}, group);
    bucket.values().fill_(group.rank() + 1);
    const auto exchange = Strategy(lockstep::AllReduce{}).exchange(bucket);
    auto work = exchange->advance({.step = 0, .stage = 0}, bucket, group);
    work.wait();
    EXPECT_FALSE(exchange->advance({.step = 0, .stage = 1}, bucket, group).pending());
    // The group's definition of a mean: the sum in rank order, times 1/3.
    const float mean = (1.0F + 2.0F + 3.0F) * (1.0F / 3.0F);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(bucket.values()[i].item<float>(), mean);
  });
}

TEST(Bucket, KeepsTheStridesOfDenseParameters) {
  lockstep::spawn(1, [](const lockstep::Group& group) {
    const auto transposed = at::arange(6, at::kFloat).view({2, 3}).t();
    const auto gaps = at::arange(12, at::kFloat).view({3, 4}).slice(1, 0, 4, 2);
    const auto last =
        at::empty({2, 3, 4, 5}, at::kFloat).contiguous(at::MemoryFormat::ChannelsLast);
    const auto empty = at::empty({0, 3}, at::kFloat);
    const auto scalar = at::tensor(7.0F);
    const lockstep::Bucket bucket(2, 256, at::kFloat,
                                  {{.name = "transposed", .parameter = transposed, .offset = 0},
                                   {.name = "gaps", .parameter = gaps, .offset = 16},
                                   {.name = "last", .parameter = last, .offset = 32},
                                   {.name = "empty", .parameter = empty, .offset = 160},
                                   {.name = "scalar", .parameter = scalar, .offset = 176}},
                                  group);
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
  });
}

}  // namespace
