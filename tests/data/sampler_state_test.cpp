#include <gtest/gtest.h>
#include <torch/data.h>

#include <algorithm>
#include <vector>

#include "lockstep/error.h"
#include "lockstep/samplers.h"

namespace lockstep::testing {
namespace {

using Indices = std::vector<std::size_t>;

Indices rest_of(DistributedSampler& sampler) {
  Indices all;
  while (const auto batch = sampler.next(3)) all.insert(all.end(), batch->begin(), batch->end());
  return all;
}

class Position : public ::testing::TestWithParam<int> {};

TEST_P(Position, AStoppedPassGoesOnWithTheSameSamples) {
  for (const Tail tail : {Tail::pad, Tail::drop}) {
    for (const std::size_t size : {0, 1, 20, 21, 23}) {
      const SamplerOptions options{.seed = 5, .tail = tail};
      for (int rank = 0; rank < GetParam(); ++rank) {
        const ShardSpec shard{.rank = rank, .ranks = GetParam()};
        DistributedSampler whole(size, shard, options);
        whole.set_epoch(3);
        whole.reset();
        whole.next(2);
        DistributedSampler fresh(size, shard, options);
        fresh.load_state(whole.state());
        const bool ended = whole.samples_per_rank() <= 2;
        const Indices expected = rest_of(whole);
        fresh.reset();
        // After the end of an epoch, the resumed sampler starts the next epoch.
        if (ended) whole.reset();
        EXPECT_EQ(rest_of(fresh), ended ? rest_of(whole) : expected) << size;
        EXPECT_EQ(fresh.epoch(), ended ? 4u : 3u);
        whole.reset();
        fresh.reset();
        EXPECT_EQ(rest_of(fresh), rest_of(whole)) << "the pass after it";
      }
    }
  }
}

TEST_P(Position, AnotherNumberOfRanksDrawsWhatIsLeft) {
  constexpr std::size_t size = 50;
  const int before = GetParam();
  Indices drawn;
  std::map<std::string, at::Tensor> state;
  for (int rank = 0; rank < before; ++rank) {
    DistributedSampler sampler(size, ShardSpec{.rank = rank, .ranks = before});
    sampler.reset();
    const Indices batch = sampler.next(4).value();
    drawn.insert(drawn.end(), batch.begin(), batch.end());
    state = sampler.state();
  }
  for (const int after : {1, 2, 5}) {
    Indices all = drawn;
    for (int rank = 0; rank < after; ++rank) {
      DistributedSampler sampler(size, ShardSpec{.rank = rank, .ranks = after},
                                 {.tail = Tail::drop});
      sampler.load_state(state);
      sampler.reset();
      const Indices rest = rest_of(sampler);
      all.insert(all.end(), rest.begin(), rest.end());
    }
    std::ranges::sort(all);
    EXPECT_EQ(std::ranges::adjacent_find(all), all.end()) << "a sample twice";
    const std::size_t left = size - drawn.size();
    EXPECT_EQ(all.size(), drawn.size() + left / static_cast<std::size_t>(after) *
                                             static_cast<std::size_t>(after));
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Position, ::testing::Values(1, 2, 3, 4, 7));

TEST(SamplerState, WhatIsUsedCountsAndNotWhatWasDrawnAhead) {
  DistributedSampler sampler(20, ShardSpec{});
  sampler.reset();
  sampler.next(5);
  sampler.next(5);
  sampler.used(5);
  DistributedSampler fresh(20, ShardSpec{});
  fresh.load_state(sampler.state());
  fresh.reset();
  EXPECT_EQ(rest_of(fresh).size(), 15u);
  sampler.reset();
  sampler.next(8);
  fresh.load_state(sampler.state());
  fresh.reset();
  EXPECT_EQ(rest_of(fresh).size(), 12u) << "a new pass counts anew";
}

TEST(SamplerState, AResumedPassCanBeStoppedAgain) {
  DistributedSampler first(30, ShardSpec{.rank = 1, .ranks = 2});
  first.reset();
  first.next(4);
  DistributedSampler second(30, ShardSpec{.rank = 1, .ranks = 2});
  second.load_state(first.state());
  EXPECT_TRUE(second.state().at("position").equal(first.state().at("position")));
  second.reset();
  EXPECT_EQ(second.next(3), first.next(3));
  DistributedSampler third(30, ShardSpec{.rank = 1, .ranks = 2});
  third.load_state(second.state());
  third.reset();
  EXPECT_EQ(rest_of(third), rest_of(first));
}

TEST(SamplerState, AnotherEpochBeginsAtItsBeginning) {
  DistributedSampler first(30, ShardSpec{});
  first.reset();
  first.next(4);
  DistributedSampler second(30, ShardSpec{});
  second.load_state(first.state());
  second.set_epoch(0);
  second.reset();
  EXPECT_EQ(rest_of(second).size(), 26u);
  second.load_state(first.state());
  second.set_epoch(1);
  second.reset();
  EXPECT_EQ(rest_of(second).size(), 30u);
}

TEST(SamplerState, WhatItDidNotReturnIsAnError) {
  DistributedSampler sampler(30, ShardSpec{});
  EXPECT_THROW(sampler.load_state({}), InvalidArgument);
  EXPECT_THROW(sampler.load_state({{"position", torch::zeros({2})}}), InvalidArgument);
  EXPECT_THROW(sampler.load_state({{"position", torch::zeros({3}, torch::kLong)}}),
               InvalidArgument);
  EXPECT_THROW(sampler.load_state({{"position", torch::tensor({0, -1})}}), InvalidArgument);
  EXPECT_THROW(sampler.load_state({{"other", torch::tensor({0, 1})}}), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::testing
