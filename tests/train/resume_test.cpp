// One run saves a checkpoint, and the next one, on as many ranks or another number, loads it.
#include <sys/resource.h>

#include <cstdlib>

#include "core/system/denormals_guard.h"
#include "lockstep/denormals.h"
#include "lockstep/learning_rate.h"
#include "lockstep/model_files.h"
#include "lockstep/several_optimizers.h"
#include "tests/parallel/models.h"
#include "tests/train/training.h"

namespace lockstep::testing {
namespace {

using lockstep::detail::concat;

/// A rank's training with a strategy, in which every rank has other samples and a random state of
/// its own.
struct Trainee {
  Trainee(const Group& of, const char* strategy)
      : group(of),
        generator(at::make_generator<at::CPUGeneratorImpl>(100 + group.rank())),
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
  Checkpoint checkpoint() {
    return {.model = *model, .optimizer = sgd, .strategy = optimizer, .generator = generator};
  }

  at::Tensor parameters() const {
    const torch::NoGradGuard no_grad;
    return at::cat({model->weight.flatten(), model->bias});
  }
  /// The residuals, which this rank has not sent.
  at::Tensor unsent() const {
    const auto state = optimizer.state();
    return at::cat({state.at("weight.residual").flatten(), state.at("bias.residual")});
  }

  Group group;
  at::Generator generator;
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

TEST(StrategyResume, KeepsTheOptimizerOfEachRankWhereRanksUseOtherParameters) {
  const TemporaryFolder folder;
  on_ranks(2, [&](const Group& group) {
    Trainee whole(group, "local_sgd:period=8"), resumed(group, "local_sgd:period=8");
    const bool on_rank0 = group.rank() == 0;
    const auto step = [](Trainee& run, bool weight, bool bias) {
      auto loss = at::zeros({});
      if (weight) loss = loss + run.model->weight.square().sum();
      if (bias) loss = loss + (run.model->bias - 1).square().sum();
      run.optimizer.backward_and_update(loss);
    };
    for (int i = 0; i < 3; ++i) step(whole, on_rank0, !on_rank0);
    step(whole, on_rank0, on_rank0);
    whole.optimizer.synchronize();
    whole.checkpoint().save(folder / "c", {}, group);
    EXPECT_EQ(resumed.checkpoint().load(folder / "c", group).changes, "");
    for (auto* run : {&whole, &resumed}) step(*run, true, true);
    EXPECT_TRUE(resumed.parameters().equal(whole.parameters())) << "rank " << group.rank();
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
        "none; ranks continue their random state where the file has one");
  }
  EXPECT_THAT(changes("local_sgd:period=2", "local_sgd:period=2", 3),
              HasSubstr("every rank's optimizer continues from rank 0's state"));
}

TEST(StrategyResume, ByAnotherNumberOfRanksGivesEachRankWhatOthersHaveNotSent) {
  for (const auto* strategy : {"topk:0.1", "threshold:1", "int8", "power_sgd:rank=2"}) {
    for (const auto& ranks : {std::pair{4, 2}, {7, 3}, {2, 3}, {1, 4}, {3, 1}}) {
      const auto before = ranks.first, after = ranks.second;
      SCOPED_TRACE(concat(strategy, ' ', before, " to ", after));
      const TemporaryFolder folder;
      std::vector<at::Tensor> unsent(7), random(7);
      on_ranks(before, [&](const Group& group) {
        Trainee run(group, strategy);
        for (int i = 0; i < 3; ++i) run.step();
        at::randn({3}, run.generator);
        run.checkpoint().save(folder / "c", {}, group);
        const auto rank = static_cast<std::size_t>(group.rank());
        unsent[rank] = run.unsent();
        random[rank] = run.generator.get_state();
      });
      on_ranks(after, [&](const Group& group) {
        Trainee run(group, strategy);
        const auto own = run.generator.get_state();
        const std::string changes =
            concat("saved by ", before, before > 1 ? " ranks" : " rank", ", resumed by ", after,
                   "; the residuals of the strategy are "
                   "redistributed over the ranks; ranks continue their random state where the file "
                   "has one");
        EXPECT_EQ(run.checkpoint().load(folder / "c", group).changes, changes);
        auto expected = at::zeros({12 * 8 + 8});
        for (int rank = group.rank(); rank < before; rank += after)
          expected += unsent[static_cast<std::size_t>(rank)];
        EXPECT_TRUE(run.unsent().allclose(expected, 1e-5, 1e-7));
        EXPECT_EQ(expected.norm().item<float>() > 0, group.rank() < before);
        EXPECT_TRUE(run.generator.get_state().equal(
            group.rank() < before ? random[static_cast<std::size_t>(group.rank())] : own));
        // Replicas stay in lockstep, which every step proves.
        for (int i = 0; i < 4; ++i) run.step();
      });
    }
  }
}

TEST(Resume, WhatTheFileLacksIsAnErrorOrSaid) {
  const TemporaryFolder folder;
  on_ranks(1, [&](const Group& group) {
    Trainee run(group, "topk:0.1");
    LearningRate rate(run.sgd, CosineDecay{.steps = 9});
    Checkpoint{.model = *run.model}.save(folder / "model");
    EXPECT_THAT(failure([&] { run.checkpoint().load(folder / "model"); }),
                HasSubstr("found no 'optimizer'"));
    save_checkpoint(folder / "short", *run.model, run.sgd);
    run.step();
    const auto unsent = run.unsent().clone();
    auto checkpoint = run.checkpoint();
    EXPECT_EQ(checkpoint.load(folder / "short").changes,
              "the strategy's state does not change: the file has none; the random state does not "
              "change: the file has none");
    EXPECT_TRUE(run.unsent().equal(unsent));
    checkpoint.rate = rate;
    EXPECT_THAT(failure([&] { checkpoint.load(folder / "short"); }),
                HasSubstr("found no 'learning_rate'"));
    const Checkpoint with_sampler{.model = *run.model, .sampler = run.optimizer};
    EXPECT_THAT(failure([&] { with_sampler.load(folder / "short"); }),
                HasSubstr("sampler: is in the program, but not in the file"));
  });
}

TEST(Resume, AnotherTreatmentOfDenormalsIsSaid) {
  const TemporaryFolder folder;
  Net net;
  const Checkpoint checkpoint{.model = net};
  const auto changes = [&](bool saved, bool resumed) {
    {
      const lockstep::detail::DenormalsGuard guard(saved);
      checkpoint.save(folder / "c");
    }
    const lockstep::detail::DenormalsGuard guard(resumed);
    return checkpoint.load(folder / "c").changes;
  };
  EXPECT_EQ(changes(false, false), "");
  {
    // A file that does not say was saved with denormals kept.
    const lockstep::detail::DenormalsGuard kept(false);
    auto content = safetensors::read(folder / "c");
    ASSERT_EQ(content.metadata.at("denormals"), "kept");
    content.metadata.erase("denormals");
    safetensors::write(folder / "old", content);
    EXPECT_EQ(checkpoint.load(folder / "old").changes, "");
  }
  if (!lockstep::detail::can_flush_denormals) GTEST_SKIP() << "not known to flush here";
  EXPECT_EQ(changes(true, true), "");
  const std::string differ = ": results may differ in their last bits";
  EXPECT_EQ(changes(true, false),
            "saved with denormals flushed, resumed with denormals kept" + differ);
  EXPECT_EQ(changes(false, true),
            "saved with denormals kept, resumed with denormals flushed" + differ);
}

TEST(Resume, TheFileGrowsOnlyByWhatEachRankNeeds) {
  const TemporaryFolder folder;
  std::uintmax_t random = 0;
  const auto size = [&](int ranks, bool own) {
    on_ranks(ranks, [&](const Group& group) {
      Trainee run(group, "fp32");
      auto checkpoint = run.checkpoint();
      checkpoint.strategy = {};
      if (!own) checkpoint.generator = {};
      checkpoint.save(folder / "c", {}, group);
      if (group.rank() == 0) random = run.generator.get_state().nbytes();
    });
    return std::filesystem::file_size(folder / "c");
  };
  EXPECT_EQ(size(7, false), size(1, false));
  EXPECT_LT(size(7, true), size(1, true) + 6 * (random + 200));
}

constexpr const char* path_variable = "LOCKSTEP_TEST_CHECKPOINT";

const ProcessBody checkpoints("checkpoints", [](std::shared_ptr<Communicator> communicator) {
  const Group group(std::move(communicator));
  const std::filesystem::path path = std::getenv(path_variable);
  torch::nn::Linear small(2, 2), model(1024, 8 * 1024);  // 32 MiB
  // LibTorch's own generator is one of each process.
  torch::manual_seed(static_cast<std::uint64_t>(group.rank()));
  torch::randn({5});
  const Checkpoint checkpoint{.model = *small, .generator = at::detail::getDefaultCPUGenerator()};
  checkpoint.save(path, {}, group);
  const at::Tensor drawn = torch::randn({5});
  torch::manual_seed(99);
  checkpoint.load(path, group);
  if (!torch::randn({5}).equal(drawn)) throw std::runtime_error("another random state");
  // Rank 1 has no memory for what rank 0 sends it.
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  save_checkpoint(path, *model, optimizer, {}, group);
  if (group.rank() == 1) {
    std::uintmax_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlimit limit{.rlim_cur = pages * 4096 + (std::uintmax_t{16} << 20),
                       .rlim_max = RLIM_INFINITY};
    setrlimit(RLIMIT_AS, &limit);
  }
  const std::string text = failure([&] { load_checkpoint(path, *model, optimizer, group); });
  const std::string expected =
      path.string() + ": tensor 'weight': no memory for its 33554432 bytes";
  if (text != (group.rank() == 1 ? expected : "rank 1: " + expected))
    throw std::runtime_error("found: " + text);
  group.barrier().wait();
});

TEST(Resume, ProcessesKeepLibTorchsRandomStateAndAShortageOnOneRankIsAnErrorOnAll) {
  const TemporaryFolder folder;
  setenv(path_variable, (folder / "c").c_str(), 1);
  expect_processes(3, "checkpoints");
}

}  // namespace
}  // namespace lockstep::testing
