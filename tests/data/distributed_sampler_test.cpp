#include <gtest/gtest.h>
#include <torch/data.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/tensor.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "lockstep/error.h"
#include "lockstep/samplers.h"

namespace lockstep::testing {
namespace {

using Indices = std::vector<std::size_t>;

Indices rest_of(DistributedSampler& sampler, std::size_t batch_size = 3) {
  Indices all;
  while (const auto batch = sampler.next(batch_size)) {
    EXPECT_FALSE(batch->empty());
    EXPECT_LE(batch->size(), batch_size);
    all.insert(all.end(), batch->begin(), batch->end());
  }
  EXPECT_EQ(sampler.next(batch_size), std::nullopt) << "the end must stay the end";
  return all;
}

Indices one_pass(DistributedSampler& sampler) {
  sampler.reset();
  return rest_of(sampler, 5);
}

// Row by row as a card dealer would do it: the samplers' definition, told another way.
std::vector<Indices> deal(const Indices& order, int ranks, Tail tail) {
  std::vector<Indices> hands(static_cast<std::size_t>(ranks));
  Indices deck = order;
  while (!order.empty() && deck.size() % hands.size() != 0) {
    if (tail == Tail::drop)
      deck.pop_back();
    else
      deck.push_back(deck[deck.size() - order.size()]);
  }
  for (std::size_t card = 0; card < deck.size(); ++card)
    hands[card % hands.size()].push_back(deck[card]);
  return hands;
}

using Case = std::tuple<int, std::size_t, Tail>;
class Partition : public ::testing::TestWithParam<Case> {};

TEST_P(Partition, DealsTheSharedOrderToTheRanks) {
  const auto [ranks, size, tail] = GetParam();
  for (const bool shuffle : {false, true}) {
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
      Indices order(size);
      std::iota(order.begin(), order.end(), std::size_t{0});
      if (shuffle) order = epoch_order(size, 11, epoch);
      const std::vector<Indices> expected = deal(order, ranks, tail);
      for (int rank = 0; rank < ranks; ++rank) {
        DistributedSampler sampler(size, ShardSpec{.rank = rank, .ranks = ranks},
                                   {.seed = 11, .shuffle = shuffle, .tail = tail});
        sampler.set_epoch(epoch);
        const Indices got = one_pass(sampler);
        EXPECT_EQ(got, expected[static_cast<std::size_t>(rank)]) << "rank " << rank;
        EXPECT_EQ(got.size(), sampler.samples_per_rank());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Partition,
                         ::testing::Combine(::testing::Values(1, 2, 3, 7),
                                            ::testing::Values(0, 1, 2, 3, 6, 7, 8, 20, 100, 1001),
                                            ::testing::Values(Tail::pad, Tail::drop)));

TEST(EpochOrder, DiffersBetweenEpochsAndSeeds) {
  std::set<Indices> orders;
  for (std::uint64_t seed = 0; seed < 10; ++seed)
    for (std::uint64_t epoch = 0; epoch < 10; ++epoch) orders.insert(epoch_order(50, seed, epoch));
  orders.insert(epoch_order(50, std::uint64_t{1} << 32, 0));
  orders.insert(epoch_order(50, 0, std::uint64_t{1} << 32));
  EXPECT_EQ(orders.size(), 102u);
}

// Both generator and seed_seq are fixed by the standard; a bound this small is rejected once in
// 1e18 draws.
TEST(EpochOrder, IsTheDocumentedAlgorithm) {
  std::seed_seq seeds{7u, 0u, 2u, 1u};
  std::mt19937_64 generator(seeds);
  Indices expected{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  for (std::size_t place = 9; place >= 1; --place) {
    std::swap(expected[place], expected[generator() % (place + 1)]);
  }
  EXPECT_EQ(epoch_order(10, 7, (std::uint64_t{1} << 32) + 2), expected);
}

TEST(DistributedSampler, SetEpochLeavesARunningPassAloneAndResetTakesANewSize) {
  DistributedSampler sampler(10, ShardSpec{}, {.seed = 5});
  const Indices order = epoch_order(10, 5, 0);
  Indices got = *sampler.next(4);
  sampler.set_epoch(9);
  const Indices rest = rest_of(sampler);
  got.insert(got.end(), rest.begin(), rest.end());
  EXPECT_EQ(got, order);
  EXPECT_EQ(one_pass(sampler), epoch_order(10, 5, 9));
  DistributedSampler resized(10, ShardSpec{.rank = 0, .ranks = 3});
  resized.reset(4);
  EXPECT_EQ(resized.next(100)->size(), 2u);
  EXPECT_EQ(resized.samples_per_rank(), 2u);
  for (const auto& [rank, ranks] : {std::pair{2, 2}, {-1, 2}, {0, 0}})
    EXPECT_THROW(DistributedSampler(10, ShardSpec{.rank = rank, .ranks = ranks}), InvalidArgument);
}

TEST(DistributedSampler, KeepsTheNextEpochInAnArchive) {
  DistributedSampler sampler(30, ShardSpec{}, {.seed = 5});
  one_pass(sampler);
  torch::serialize::OutputArchive out;
  sampler.save(out);
  std::stringstream stream;
  out.save_to(stream);

  torch::serialize::InputArchive in;
  in.load_from(stream);
  DistributedSampler fresh(30, ShardSpec{}, {.seed = 5});
  fresh.load_state({{"position", torch::tensor({0, 10})}});  // of an unfinished pass
  fresh.load(in);
  EXPECT_EQ(one_pass(fresh), epoch_order(30, 5, 1));
}

class ThroughALoader : public ::testing::TestWithParam<std::size_t> {};

Indices loaded(auto& loader) {
  Indices all;
  for (auto& batch : loader)
    for (auto& example : batch)
      all.push_back(static_cast<std::size_t>(example.data.template item<std::int64_t>()));
  return all;
}

TEST_P(ThroughALoader, EpochsAdvanceAndCanBeSet) {
  auto numbers = torch::data::datasets::TensorDataset(torch::arange(25));
  DistributedSampler sampler(25, ShardSpec{.rank = 1, .ranks = 2}, {.seed = 8});
  auto loader = torch::data::make_data_loader(
      numbers, sampler, torch::data::DataLoaderOptions(4).workers(GetParam()));

  auto expected = [](std::uint64_t epoch) {
    return deal(epoch_order(25, 8, epoch), 2, Tail::pad)[1];
  };
  EXPECT_EQ(sampler.epoch(), 0u);
  EXPECT_EQ(loaded(*loader), expected(0));
  EXPECT_EQ(sampler.epoch(), 0u);
  EXPECT_EQ(loaded(*loader), expected(1));
  EXPECT_EQ(sampler.epoch(), 1u);
  sampler.set_epoch(0);
  EXPECT_EQ(loaded(*loader), expected(0));
  sampler.set_epoch(7);
  EXPECT_EQ(loaded(*loader), expected(7));
  EXPECT_EQ(sampler.epoch(), 7u);
  EXPECT_EQ(loaded(*loader), expected(8));
  auto nothing = torch::data::datasets::TensorDataset(torch::arange(0));
  DistributedSampler of_nothing(0, ShardSpec{.rank = 0, .ranks = 2});
  auto empty = torch::data::make_data_loader(nothing, of_nothing,
                                             torch::data::DataLoaderOptions(4).workers(GetParam()));
  EXPECT_TRUE(loaded(*empty).empty());
}

INSTANTIATE_TEST_SUITE_P(Workers, ThroughALoader, ::testing::Values(0, 2));

TEST(EvaluationSampler, DrawsEachIndexOnceOverAllRanks) {
  for (const int ranks : {1, 2, 3, 7}) {
    for (const std::size_t size : {0, 1, 2, 6, 7, 8, 100, 1001}) {
      std::vector<int> times(size, 0);
      std::size_t fewest = size + 1;
      std::size_t most = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        EvaluationSampler sampler(size, ShardSpec{.rank = rank, .ranks = ranks});
        std::size_t drawn = 0;
        while (const auto batch = sampler.next(3)) {
          EXPECT_FALSE(batch->empty());
          for (const std::size_t index : *batch) ++times.at(index);
          drawn += batch->size();
        }
        fewest = std::min(fewest, drawn);
        most = std::max(most, drawn);
      }
      EXPECT_EQ(std::count(times.begin(), times.end(), 1), static_cast<std::ptrdiff_t>(size))
          << size << " samples on " << ranks << " ranks";
      EXPECT_LE(most - fewest, 1u);
    }
  }
  // Every pass is the same.
  EvaluationSampler sampler(10, ShardSpec{.rank = 1, .ranks = 3});
  for (int pass = 0; pass < 2; ++pass, sampler.reset()) {
    EXPECT_EQ(sampler.next(100), (Indices{3, 4, 5}));
    EXPECT_EQ(sampler.next(100), std::nullopt);
  }
  sampler.reset(3);
  EXPECT_EQ(sampler.next(100), Indices{1});
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
        if (whole.samples_per_rank() > 4) {  // a resumed pass can be stopped again
          EXPECT_TRUE(fresh.state().at("position").equal(whole.state().at("position")));
          DistributedSampler first(size, shard, options);
          first.load_state(whole.state());
          first.reset();
          EXPECT_EQ(first.next(2), whole.next(2));
          fresh.load_state(first.state());
        }
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

TEST(SamplerState, IsWhatOneEpochUsedAndNotWhatWasDrawnAhead) {
  DistributedSampler sampler(30, ShardSpec{});
  sampler.reset();
  sampler.next(5);
  sampler.next(5);
  sampler.used(5);
  DistributedSampler fresh(30, ShardSpec{});
  fresh.load_state(sampler.state());
  fresh.reset();
  EXPECT_EQ(rest_of(fresh).size(), 25u);
  sampler.reset();
  sampler.next(8);
  fresh.load_state(sampler.state());
  fresh.reset();
  EXPECT_EQ(rest_of(fresh).size(), 22u) << "a new pass counts anew";
  for (const std::uint64_t epoch : {sampler.epoch(), sampler.epoch() + 1}) {
    DistributedSampler other(30, ShardSpec{});
    other.load_state(sampler.state());
    other.set_epoch(epoch);
    other.reset();
    EXPECT_EQ(rest_of(other).size(), epoch == sampler.epoch() ? 22u : 30u);
  }
}

TEST(SamplerState, WhatItDidNotReturnIsAnError) {
  DistributedSampler sampler(30, ShardSpec{});
  EXPECT_THROW(sampler.load_state({}), InvalidArgument);
  EXPECT_THROW(sampler.load_state({{"other", torch::tensor({0, 1})}}), InvalidArgument);
  for (const at::Tensor& position :
       {torch::zeros({2}), torch::zeros({3}, torch::kLong), torch::tensor({0, -1})})
    EXPECT_THROW(sampler.load_state({{"position", position}}), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::testing
