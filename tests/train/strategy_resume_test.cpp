#include "lockstep/checkpoint.h"
#include "lockstep/several_optimizers.h"
#include "tests/matchers.h"
#include "tests/message_of.h"
#include "tests/parallel/models.h"
#include "tests/temporary_folder.h"

// The state of strategies, saved in one run and loaded in the next.

namespace lockstep::testing {
namespace {

/// A rank's training with a strategy, in which every rank has other samples.
struct Trainee {
  Trainee(const Group& of, const char* strategy)
      : group(of),
        optimizer(sgd, *model, group,
                  {.buckets = {.first = 0, .rest = 0}, .strategy = parse_strategy(strategy)}) {
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : model->parameters()) {
      const auto places = at::arange(parameter.numel(), at::kFloat);
      parameter.copy_(at::sin(places * 1.3).view(parameter.sizes()) * 0.3);
    }
  }

  void step() {
    const auto x = at::sin(at::arange(4 * 12, at::kFloat) * 0.7 + 10 * group.rank() + number++);
    optimizer.backward_and_update(model(x.view({4, 12})).square().mean());
  }
  Checkpoint checkpoint() { return {.model = *model, .optimizer = sgd, .strategy = optimizer}; }

  at::Tensor parameters() const {
    const torch::NoGradGuard no_grad;
    return at::cat({model->weight.flatten(), model->bias});
  }
  /// The sum over ranks of what was not sent.
  at::Tensor unsent() const {
    at::Tensor sum = at::zeros({12 * 8 + 8}, at::kFloat);
    const auto state = optimizer.state();
    if (state.contains("weight.residual")) {
      sum = at::cat({state.at("weight.residual").flatten(), state.at("bias.residual")});
    }
    group.all_reduce(sum).wait();
    return sum;
  }

  Group group;
  torch::nn::Linear model{12, 8};
  torch::optim::SGD sgd{model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9)};
  DistributedOptimizer optimizer;
  int number = 0;
};

constexpr const char* all_strategies[] = {"fp32",           "fp16",
                                          "topk:0.1",       "threshold:0.01",
                                          "int8",           "power_sgd:rank=2",
                                          "partial_update", "local_sgd:period=2",
                                          "adasum",         "warmup:2:topk:0.1,ramp=4",
                                          "warmup:6:adasum"};

TEST(StrategyResume, GoesOnBitForBit) {
  for (const auto* strategy : all_strategies) {
    const TemporaryFolder folder;
    on_ranks(2, [&](const Group& group) {
      Trainee whole(group, strategy);
      for (int i = 0; i < 3; ++i) whole.step();
      whole.optimizer.synchronize();
      whole.checkpoint().save(folder / "c", {}, group);
      Trainee resumed(group, strategy);
      EXPECT_EQ(resumed.checkpoint().load(folder / "c", group).changes, "") << strategy;
      resumed.number = whole.number;
      for (int i = 0; i < 4; ++i) {
        whole.step();
        resumed.step();
      }
      EXPECT_TRUE(resumed.parameters().equal(whole.parameters())) << strategy;
    });
  }
}

// Every rank took the sum of all residuals.
TEST(StrategyResume, NeedsTheGroupOfAStrategyOfSeveralRanks) {
  const TemporaryFolder folder;
  on_ranks(2, [&](const Group& group) {
    Trainee whole(group, "topk:0.1");
    whole.step();
    whole.checkpoint().save(folder / "c", {}, group);
    const auto before = whole.parameters();
    whole.step();
    const auto after = whole.parameters();
    torch::nn::Linear wrapped(12, 8);
    DistributedDataParallel ddp(wrapped, group);
    const SeveralStateful several({whole.optimizer, ddp});
    for (const Stateful& strategy : {Stateful(whole.optimizer), Stateful(ddp), Stateful(several)}) {
      auto checkpoint = whole.checkpoint();
      checkpoint.strategy = strategy;
      EXPECT_THAT(failure([&] { checkpoint.load(folder / "c"); }),
                  HasSubstr("load(path) for a single process: got a strategy of 2 "
                            "ranks, expected load(path, group) on all of them"));
    }
    EXPECT_TRUE(whole.parameters().equal(after));
    whole.checkpoint().load(folder / "c", group);
    EXPECT_TRUE(whole.parameters().equal(before));
  });
  on_ranks(1, [&](const Group& group) {
    Trainee alone(group, "topk:0.1");
    EXPECT_NE(alone.checkpoint().load(folder / "c").changes, "");
  });
}

/// Two parameters of which a rank may use only one, as experts of a mixture.
struct Experts : torch::nn::Module {
  at::Tensor first = register_parameter("first", at::ones({3}));
  at::Tensor second = register_parameter("second", at::ones({3}));
};

TEST(StrategyResume, KeepsTheOptimizerOfEachRankWhereRanksUseOtherParameters) {
  const TemporaryFolder folder;
  on_ranks(2, [&](const Group& group) {
    struct Run {
      explicit Run(const Group& group)
          : optimizer(adam, model, group, parse_strategy("local_sgd:period=8")) {}
      void step(bool first, bool second) {
        auto loss = at::zeros({});
        if (first) loss = loss + model.first.square().sum();
        if (second) loss = loss + model.second.square().sum();
        optimizer.backward_and_update(loss);
      }
      Checkpoint checkpoint() { return {.model = model, .optimizer = adam, .strategy = optimizer}; }
      Experts model;
      torch::optim::Adam adam{model.parameters(), torch::optim::AdamOptions(0.1)};
      DistributedOptimizer optimizer;
    };
    Run whole(group);
    const bool on_rank0 = group.rank() == 0;
    for (int i = 0; i < 3; ++i) whole.step(on_rank0, !on_rank0);
    whole.step(on_rank0, on_rank0);
    whole.optimizer.synchronize();
    whole.checkpoint().save(folder / "c", {}, group);
    Run resumed(group);
    EXPECT_EQ(resumed.checkpoint().load(folder / "c", group).changes, "");
    for (auto* run : {&whole, &resumed}) run->step(true, true);
    EXPECT_TRUE(resumed.model.first.equal(whole.model.first)) << "rank " << group.rank();
    EXPECT_TRUE(resumed.model.second.equal(whole.model.second)) << "rank " << group.rank();
  });
}

TEST(StrategyResume, SaysWhatBeginsAnew) {
  const TemporaryFolder folder;
  const auto changes = [&](const char* saved, const char* resumed, int ranks = 2) {
    std::string said;
    at::Tensor of_rank0;
    on_ranks(2, [&](const Group& group) {
      Trainee run(group, saved);
      for (int i = 0; i < 4; ++i) run.step();
      run.checkpoint().save(folder / "c", {}, group);
      if (group.rank() == 0) of_rank0 = run.parameters();
    });
    on_ranks(ranks, [&](const Group& group) {
      Trainee next(group, resumed);
      const auto found = next.checkpoint().load(folder / "c", group).changes;
      EXPECT_TRUE(next.parameters().equal(of_rank0));
      for (int i = 0; i < 2; ++i) next.step();
      if (group.rank() == 0) said = found;
    });
    return said;
  };
  const std::string kept =
      "some values of the strategy's state do not change: the file has the state of another "
      "strategy";
  EXPECT_EQ(changes("fp32", "topk:0.1"), kept);
  EXPECT_EQ(changes("topk:0.1,feedback=off", "topk:0.1"), kept);
  EXPECT_EQ(changes("power_sgd:rank=1", "power_sgd:rank=2"), kept);
  EXPECT_EQ(changes("topk:0.1", "threshold:0.1"), "");
  for (const auto* strategy : {"fp32", "fp16"}) {
    EXPECT_EQ(
        changes(strategy, "topk:0.1", 3),
        "saved by 2 ranks, resumed by 3; the residuals of the strategy are zero: the file has "
        "none");
  }
  EXPECT_THAT(changes("local_sgd:period=2", "local_sgd:period=2", 3),
              HasSubstr("every rank's optimizer continues from rank 0's state"));
}

TEST(StrategyResume, ByAnotherNumberOfRanksKeepsTheSumOfWhatWasNotSent) {
  for (const auto* strategy : {"topk:0.1", "threshold:1", "int8", "power_sgd:rank=2"}) {
    for (const auto& ranks : {std::pair{4, 2}, {7, 3}, {2, 3}, {1, 4}, {3, 1}}) {
      const auto before = ranks.first;
      const auto after = ranks.second;
      const TemporaryFolder folder;
      at::Tensor unsent;
      on_ranks(before, [&](const Group& group) {
        Trainee run(group, strategy);
        for (int i = 0; i < 3; ++i) run.step();
        const auto sum = run.unsent();
        if (group.rank() == 0) unsent = sum;
        run.checkpoint().save(folder / "c", {}, group);
      });
      EXPECT_GT(unsent.norm().item<double>(), 0) << strategy;
      on_ranks(after, [&](const Group& group) {
        Trainee run(group, strategy);
        EXPECT_THAT(run.checkpoint().load(folder / "c", group).changes,
                    HasSubstr("the residuals of the strategy are redistributed over the ranks"));
        EXPECT_TRUE(run.unsent().allclose(unsent, 1e-5, 1e-7))
            << strategy << ' ' << before << " to " << after;
        // Replicas stay in lockstep, which every step proves.
        for (int i = 0; i < 4; ++i) run.step();
      });
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
