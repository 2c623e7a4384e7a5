#include "sync/between_hosts.h"

#include <ATen/ops/zeros.h>

#include <map>

#include "tests/refusal.h"
#include "tests/sync/on_hosts.h"
#include "tests/sync/reference.h"

// Ranks are threads with assigned host names. Their results must equal those of one rank a host
// that holds the mean of its host's ranks.

namespace lockstep::testing {
namespace {

using lockstep::detail::between_hosts;
using lockstep::detail::HostGroups;
using Lengths = std::vector<std::size_t>;
using Values = std::map<std::string, at::Tensor>;

constexpr std::size_t bucket_numel = 1056;

std::vector<Bucket::Slice> parameters() {
  std::vector<Bucket::Slice> slices;
  const auto add = [&](const char* name, std::size_t offset, at::IntArrayRef sizes) {
    slices.push_back({.name = name, .parameter = at::zeros(sizes), .offset = offset});
  };
  add("a", 0, {6, 50});
  add("b", 304, {30});
  add("c", 336, {8, 40});
  add("d", 656, {100});
  add("e", 768, {12, 24});
  return slices;
}

at::Tensor gradient_of(const std::string& name, at::IntArrayRef sizes, int rank, int step) {
  const auto seed = rank * 8 + name.front() % 8;
  const auto numel = static_cast<std::size_t>(c10::multiply_integers(sizes));
  const auto values = gradient<float>(Kind::normal, numel, seed, step);
  return at::tensor(values).reshape(sizes);
}

void fill(const Bucket& bucket, int rank, int step) {
  bucket.values().zero_();
  for (const auto& slice : bucket.slices())
    slice.values.copy_(gradient_of(slice.name, slice.values.sizes(), rank, step));
}

void fill_with_mean(const Bucket& bucket, const std::vector<int>& hosts, int host, int step) {
  const double count = std::ranges::max(hosts) + 1;
  for (const auto& slice : bucket.slices()) {
    slice.values.zero_();
    for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
      if (hosts[rank] != host) continue;
      slice.values.add_(
          gradient_of(slice.name, slice.values.sizes(), static_cast<int>(rank), step));
    }
    slice.values.mul_(count / static_cast<double>(hosts.size()));
  }
}

Values taken_from(const Bucket& bucket) {
  Values values;
  for (const auto& slice : bucket.slices()) values[slice.name] = slice.values.clone();
  return values;
}

/// The expected values of each part, step by step: the strategy's result on ranks that hold the
/// hosts' means.
std::vector<Values> expected(const Strategy& strategy, const std::vector<int>& hosts,
                             const Lengths& lengths, int steps) {
  std::vector<Values> results(static_cast<std::size_t>(steps));
  on_ranks(std::ranges::max(hosts) + 1, [&](const Group& group) {
    std::size_t begin = 0;
    for (const auto length : lengths) {
      auto slices = parameters();
      std::erase_if(slices, [&](const auto& slice) {
        return slice.offset < begin || slice.offset >= begin + length;
      });
      for (auto& slice : slices) slice.offset -= begin;
      Bucket part(0, length, at::kFloat, std::move(slices), group);
      const auto exchange = strategy.exchange(part);
      for (int step = 0; step < steps; ++step) {
        fill_with_mean(part, hosts, group.rank(), step);
        advance(*exchange, step, part, group);
        if (group.rank() == 0) results[static_cast<std::size_t>(step)].merge(taken_from(part));
      }
      begin += length;
    }
  });
  return results;
}

void expect_same(const Values& got, const Values& wanted, const std::string& what) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  for (const auto& [name, values] : wanted)
    EXPECT_TRUE(at::allclose(got.at(name), values, 1e-5, 1e-6)) << what << ", parameter " << name;
}

struct World {
  std::vector<int> hosts;
  Lengths lengths;  ///< of the leaders' shards
};

const World worlds[] = {{{0, 0, 1, 1}, {656, 400}},
                        {{0, 1, 1, 0, 0}, {656, 400}},
                        {{0, 0, 1}, {1056}},
                        {{0, 1, 2, 0, 2, 1, 0}, {656, 400}}};

TEST(BetweenHosts, GivesWhatTheStrategyMakesOfTheHostsMeans) {
  constexpr int steps = 3;
  for (const char* text : {"topk:0.1", "topk:0.05,feedback=off", "threshold:0.8", "int8",
                           "power_sgd:rank=2", "warmup:1:topk:0.1"}) {
    const auto strategy = parse_strategy(text);
    for (const auto& world : worlds) {
      const auto& hosts = world.hosts;
      const auto wanted = expected(strategy, hosts, world.lengths, steps);
      std::vector<Values> got;
      on_ranks(static_cast<int>(hosts.size()), [&](const Group& threads) {
        const auto group = on_hosts(threads, hosts);
        Bucket bucket(0, bucket_numel, at::kFloat, parameters(), group);
        const auto exchange = between_hosts(strategy, bucket, *HostGroups::of(group));
        for (int step = 0; step < steps; ++step) {
          fill(bucket, group.rank(), step);
          advance(*exchange, step, bucket, group);
          for (const auto& slice : bucket.slices())
            EXPECT_TRUE(same_on_all_ranks(slice.values, group)) << text << slice.name;
          if (group.rank() == 0) got.push_back(taken_from(bucket));
        }
      });
      for (std::size_t step = 0; step < steps; ++step) {
        const auto what = lockstep::detail::concat(text, " of ", hosts.size(), ", step ", step);
        expect_same(got[step], wanted[step], what);
      }
    }
  }
}

// Of parameters a host brings its ranks' mean, however many ranks it has.
TEST(BetweenHosts, JoinsTheChangesOfHostsOfUnequalSize) {
  for (const auto& world : worlds) {
    const auto& hosts = world.hosts;
    on_ranks(static_cast<int>(hosts.size()), [&](const Group& threads) {
      const auto group = on_hosts(threads, hosts);
      Bucket bucket(0, bucket_numel, at::kFloat, parameters(), group);
      const auto exchange = between_hosts(Adasum{}, bucket, *HostGroups::of(group));
      exchange->before_update(0, bucket);  // all parameters are 0
      for (const auto& slice : bucket.slices()) slice.values.fill_(3);
      advance(*exchange, 0, bucket, group);
      for (const auto& slice : bucket.slices()) {
        EXPECT_TRUE(at::allclose(slice.values, at::full_like(slice.values, 3)))
            << slice.name << " of " << hosts.size() << ": changes that are alike join to the same";
      }
    });
  }
}

TEST_ON_RANKS(BetweenHosts, GoesOnFromASavedState, 4) {
  const auto group = on_hosts(world, {0, 0, 1, 1});
  for (const char* text : {"topk:0.1", "power_sgd:rank=2", "int8"}) {
    const auto strategy = parse_strategy(text);
    const auto made_of = HostGroups::of(group);
    Bucket bucket(0, bucket_numel, at::kFloat, parameters(), group);
    const auto first = between_hosts(strategy, bucket, *made_of);
    const auto step = [&](Exchange& exchange, int number) {
      fill(bucket, group.rank(), number);
      advance(exchange, number, bucket, group);
      return bucket.values().clone();
    };
    step(*first, 0);
    State saved;
    for (const auto& [name, tensor] : first->state()) saved.emplace(name, tensor.clone());
    const auto wanted = step(*first, 1);
    const auto second = between_hosts(strategy, bucket, *made_of);
    second->load(saved);
    EXPECT_TRUE(step(*second, 1).equal(wanted)) << text << ", rank " << group.rank();
  }
}

// From a world in which this rank carried other parameters.
TEST_ON_RANKS(BetweenHosts, SendsWhatOtherRanksHadKept, 4) {
  const auto group = on_hosts(world, {0, 0, 1, 1});
  Bucket bucket(0, bucket_numel, at::kFloat, parameters(), group);
  const auto exchange = between_hosts(TopK{.ratio = 1}, bucket, *HostGroups::of(group));
  State saved;
  for (const auto& slice : bucket.slices()) {
    saved.emplace(slice.name + ".residual",
                  at::full(slice.values.sizes(), 1 + group.rank(), at::kFloat));
  }
  exchange->load(saved);
  EXPECT_EQ(exchange->state().size(), bucket.slices().size());
  advance(*exchange, 0, bucket, group);
  // The sum of all ranks' over the number of hosts.
  for (const auto& slice : bucket.slices())
    EXPECT_TRUE(slice.values.eq(5).all().item<bool>()) << slice.name;
  bucket.values().zero_();
  advance(*exchange, 1, bucket, group);
  EXPECT_TRUE(bucket.values().eq(0).all().item<bool>());
}

TEST_ON_RANKS(BetweenHosts, RefusesOnAllRanksWhatOnePartRefuses, 4) {
  const auto group = on_hosts(world, {0, 0, 1, 1});
  for (const char* text : {"topk:0.1", "threshold:0.5", "int8", "power_sgd:rank=2"}) {
    Bucket bucket(0, bucket_numel, at::kFloat, parameters(), group);
    const auto exchange = between_hosts(parse_strategy(text), bucket, *HostGroups::of(group));
    fill(bucket, group.rank(), 0);
    if (group.rank() == 2)
      bucket.slices()[3].values[7].fill_(std::numeric_limits<float>::infinity());
    const auto error = thrown_by<InvalidArgument>([&] { advance(*exchange, 0, bucket, group); });
    EXPECT_THAT(error.what(), HasSubstr("of parameter d on rank 2 has NaN or Inf"));
    EXPECT_EQ(error.rank(), 2);
    EXPECT_EQ(error.cause().empty(), group.rank() == 2);
    fill(bucket, group.rank(), 1);
    advance(*exchange, 1, bucket, group);
    EXPECT_TRUE(bucket.values().isfinite().all().item<bool>()) << text;
  }
}

TEST_ON_RANKS(BetweenHosts, NamesTheHostWhoseSumOverflows, 4) {
  const auto group = on_hosts(world, {0, 0, 1, 1});
  Bucket bucket(0, bucket_numel, at::kFloat, parameters(), group);
  const auto exchange = between_hosts(TopK{.ratio = 1}, bucket, *HostGroups::of(group));
  bucket.slices()[3].values.fill_(group.rank() < 2 ? 0 : std::numeric_limits<float>::max());
  EXPECT_THAT(refusal([&] { advance(*exchange, 0, bucket, group); }),
              AllOf(HasSubstr("where rank is the index of a host"),
                    HasSubstr("of parameter d on rank 1 has NaN or Inf")));
}

TEST_ON_RANKS(HostGroups, AreForHostsThatHoldSeveralRanks, 3) {
  EXPECT_FALSE(HostGroups::of(on_hosts(world, {0, 0, 0})));
  EXPECT_FALSE(HostGroups::of(on_hosts(world, {0, 1, 2})));
  const auto groups = HostGroups::of(on_hosts(world, {0, 1, 0}));
  ASSERT_TRUE(groups);
  EXPECT_EQ(groups->topology.shards, 1);
  EXPECT_EQ(groups->intra_node.size(), world.rank() == 1 ? 1 : 2);
  EXPECT_EQ(groups->inter_node.has_value(), world.rank() != 2);
}

}  // namespace
}  // namespace lockstep::testing
