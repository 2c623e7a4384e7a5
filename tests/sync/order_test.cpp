#include <torch/nn/module.h>
#include <torch/optim/sgd.h>

#include <numeric>
#include <thread>

#include "lockstep/distributed_optimizer.h"
#include "tests/sync/reference.h"

// The collectives and their order depend on bucket and stage alone. Ranks with hooks in other
// orders and with random delays get the same bits as ranks without delays.

namespace lockstep::testing {
namespace {

constexpr int delayed_parameters = 6;

/// Sleeps for up to 0.4 milliseconds, three times in four.
void dawdle(std::mt19937& random) {
  const auto drawn = random() % 400;
  if (drawn % 4 > 0) std::this_thread::sleep_for(std::chrono::microseconds(drawn));
}

struct Sum : torch::nn::Module {
  Sum() {
    for (int i = 0; i < delayed_parameters; ++i) {
      p.push_back(register_parameter("p" + std::to_string(i), at::ones({8 + i, 40})));
    }
  }

  /// Adds up the terms in the order of the seed, which is that of their hooks, backwards.
  at::Tensor forward(int rank, int step, std::uint32_t seed) {
    std::vector<int> order(delayed_parameters);
    std::iota(order.begin(), order.end(), 0);
    std::mt19937 random(seed);
    if (seed > 0) std::ranges::shuffle(order, random);
    auto sum = at::zeros({1});
    for (const int i : order) {
      const auto& parameter = p[static_cast<std::size_t>(i)];
      const auto x = parameter * 1;
      if (seed > 0) {
        x.register_hook([late = random()](const at::Tensor&) {
          std::mt19937 own(late);
          if (own() % 2 > 0) dawdle(own);
        });
      }
      const auto places = at::arange(parameter.numel(), at::kFloat).view(parameter.sizes());
      sum = sum + (x * at::sin(places * 0.37 + 5 * rank + 3 * step + i)).sum();
    }
    return sum;
  }
  std::vector<at::Tensor> p;
};

/// A strategy each of whose stages a rank comes late to.
struct Delayed {
  Strategy strategy;
  std::uint32_t seed;

  std::string text() const { return strategy.text(); }
  bool exchanges_every_gradient() const { return strategy.exchanges_every_gradient(); }
  SyncTarget target(std::int64_t step, std::size_t bucket, std::size_t buckets) const {
    return strategy.target(step, bucket, buckets);
  }
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const {
    struct Run final : Exchange {
      Run(std::unique_ptr<Exchange> exchange, std::uint32_t seed)
          : of(std::move(exchange)), random(seed) {}
      ExchangeTask exchange(std::int64_t step, Bucket& bucket, const Group& group) override {
        auto task = of->exchange(step, bucket, group);
        while (true) {
          dawdle(random);
          auto work = task.advance();
          if (!work.pending()) co_return;
          co_await std::move(work);
        }
      }
      void before_update(std::int64_t step, const Bucket& bucket) override {
        of->before_update(step, bucket);
      }
      std::unique_ptr<Exchange> of;
      std::mt19937 random;
    };
    return std::make_unique<Run>(strategy.exchange(bucket), seed);
  }
};

/// Rank 0's averaged gradients of all steps and its parameters after them; each rank's are the
/// same. Seed 0 delays nothing.
at::Tensor trained(const char* strategy, int ranks, std::uint32_t seed) {
  at::Tensor result;
  on_ranks(ranks, [&](const Group& group) {
    const auto own = seed == 0 ? 0 : 100 * seed + static_cast<std::uint32_t>(group.rank());
    DataParallelOptions options{.buckets = {.first = 0, .rest = 0},
                                .strategy = parse_strategy(strategy)};
    if (own > 0) options.strategy = Delayed{options.strategy, own};
    Sum model;
    torch::optim::SGD sgd(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    DistributedOptimizer optimizer(sgd, model, group, options);
    std::vector<at::Tensor> values;
    for (int step = 0; step < 8; ++step) {
      optimizer.zero_grad();
      model.forward(group.rank(), step, own == 0 ? 0 : own + static_cast<std::uint32_t>(step))
          .backward();
      for (const auto& p : model.p)
        if (!optimizer.replicas_may_differ()) values.push_back(p.grad().flatten().clone());
      optimizer.step();
    }
    optimizer.synchronize();
    for (const auto& p : model.p) values.push_back(p.detach().flatten());
    const auto flat = at::cat(values);
    EXPECT_TRUE(same_on_all_ranks(flat, group)) << strategy;
    if (group.rank() == 0) result = flat;
  });
  return result;
}

TEST(Order, OfStagesIsTheSameHoweverLateRanksAndHooksAre) {
  for (const auto* strategy :
       {"fp32", "topk:0.1", "threshold:0.9", "int8", "power_sgd:rank=2", "partial_update",
        "partial_update:of=gradients", "local_sgd:period=3", "adasum"}) {
    for (const int ranks : {3, 7}) {
      const auto undelayed = trained(strategy, ranks, 0);
      for (const std::uint32_t seed : {1, 2}) {
        EXPECT_TRUE(trained(strategy, ranks, seed).equal(undelayed))
            << strategy << " on " << ranks << " ranks, seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
