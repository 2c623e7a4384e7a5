#include <sys/resource.h>

#include <cstdlib>

#include "core/system/denormals_guard.h"
#include "lockstep/denormals.h"
#include "lockstep/learning_rate.h"
#include "lockstep/model_files.h"
#include "tests/groups.h"
#include "tests/train/training.h"

namespace lockstep::testing {
namespace {

at::Generator generator_of(int seed) {
  return at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(seed));
}

/// Stands for a wrapper whose exchanges remember what they did not send.
struct Residuals {
  State state() const { return tensors; }
  void load_state(const State& state) { tensors = state; }
  State tensors{};
};

/// One rank's training with everything that a checkpoint keeps.
struct Trainer {
  explicit Trainer(int rank) : generator(generator_of(100 + rank)) {}

  void step() {
    const at::Tensor x = torch::randn({8, 4}, generator);
    optimizer.zero_grad();
    model.forward(x).square().mean().backward();
    optimizer.step();
    rate.step();
    auto& steps = residuals.tensors["step"];
    steps = steps.defined() ? steps + 1 : torch::tensor(1);
    auto& residual = residuals.tensors["first.weight.residual"];
    const at::Tensor drawn = torch::randn({6, 4}, generator);
    residual = residual.defined() ? residual + drawn : drawn;
  }
  const at::Tensor& residual() const { return residuals.tensors.at("first.weight.residual"); }
  Checkpoint checkpoint() {
    return {.model = model,
            .optimizer = optimizer,
            .rate = rate,
            .strategy = residuals,
            .generator = generator};
  }

  Net model;
  at::Generator generator;
  torch::optim::SGD optimizer{model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)};
  LearningRate rate{optimizer, WarmUp{.steps = 3, .then = CosineDecay{.steps = 9}}};
  Residuals residuals;
};

/// Runs for so many ranks; rank 0's model is what all of them hold when they load.
std::vector<std::unique_ptr<Trainer>> runs_of(int ranks) {
  std::vector<std::unique_ptr<Trainer>> runs;
  for (int rank = 0; rank < ranks; ++rank) runs.push_back(std::make_unique<Trainer>(rank));
  return runs;
}

Resumed load(std::vector<std::unique_ptr<Trainer>>& runs, const std::filesystem::path& path) {
  Resumed found;
  run_groups(static_cast<int>(runs.size()), [&](const Group& group) {
    const Resumed own =
        runs[static_cast<std::size_t>(group.rank())]->checkpoint().load(path, group);
    if (group.rank() == group.size() - 1) found = own;
  });
  return found;
}

void save(std::vector<std::unique_ptr<Trainer>>& runs, const std::filesystem::path& path) {
  run_groups(static_cast<int>(runs.size()), [&](const Group& group) {
    runs[static_cast<std::size_t>(group.rank())]->checkpoint().save(path, {}, group);
  });
}

TEST(Resume, OtherNumbersOfRanksSayWhatTheyLeaveOutAndWhatIsTheirOwn) {
  const TemporaryFolder folder;
  auto four = runs_of(4), two = runs_of(2), one = runs_of(1), three = runs_of(3);
  for (auto* runs : {&four, &two, &one, &three})
    for (auto& run : *runs) run->step();
  save(four, folder / "c");
  EXPECT_EQ(
      load(two, folder / "c").changes,
      "saved by 4 ranks, resumed by 2; the residuals of the strategy are redistributed over the "
      "ranks; the file's random state of ranks 2 to 3 is not used");
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(two[rank]->residual().equal(four[rank]->residual() + four[rank + 2]->residual()));
    EXPECT_TRUE(two[rank]->generator.get_state().equal(four[rank]->generator.get_state()));
  }

  one[0]->checkpoint().save(folder / "c");
  const at::Tensor own = three[2]->generator.get_state();
  EXPECT_EQ(
      load(three, folder / "c").changes,
      "saved by 1 rank, resumed by 3; the residuals of the strategy are redistributed over the "
      "ranks; the random state of ranks 1 to 2 does not change: the file has none");
  EXPECT_TRUE(three[0]->residual().equal(one[0]->residual()));
  EXPECT_EQ(three[2]->residual().norm().item<float>(), 0);
  EXPECT_EQ(three[2]->residuals.tensors.at("step").item<int>(), 1);
  EXPECT_TRUE(three[2]->generator.get_state().equal(own));
  EXPECT_TRUE(three[2]->model.first->weight.equal(one[0]->model.first->weight));
}

TEST(Resume, WhatTheFileLacksIsAnErrorOrSaid) {
  const TemporaryFolder folder;
  Trainer run(0);
  Checkpoint{.model = run.model}.save(folder / "model");
  EXPECT_THAT(failure([&] { run.checkpoint().load(folder / "model"); }),
              HasSubstr("found no 'optimizer'"));
  save_checkpoint(folder / "short", run.model, run.optimizer);
  EXPECT_THAT(failure([&] { run.checkpoint().load(folder / "short"); }),
              HasSubstr("found no 'learning_rate'"));
  run.step();
  Checkpoint without = run.checkpoint();
  without.rate = {};
  const at::Tensor residual = run.residual().clone();
  EXPECT_EQ(without.load(folder / "short").changes,
            "the strategy's state does not change: the file has none; the random state does not "
            "change: the file has none");
  EXPECT_TRUE(run.residual().equal(residual));
  Checkpoint with_sampler{.model = run.model, .sampler = run.residuals};
  EXPECT_THAT(failure([&] { with_sampler.load(folder / "short"); }),
              HasSubstr("sampler: is in the program, but not in the file"));
}

TEST(Resume, AnotherTreatmentOfDenormalsIsSaid) {
  const TemporaryFolder folder;
  Trainer run(0);
  const auto changes = [&](bool saved, bool resumed) {
    {
      const lockstep::detail::DenormalsGuard guard(saved);
      run.checkpoint().save(folder / "c");
    }
    const lockstep::detail::DenormalsGuard guard(resumed);
    return run.checkpoint().load(folder / "c").changes;
  };
  EXPECT_EQ(changes(false, false), "");
  {
    // A file that does not say was saved with denormals kept.
    const lockstep::detail::DenormalsGuard kept(false);
    auto content = safetensors::read(folder / "c");
    ASSERT_EQ(content.metadata.at("denormals"), "kept");
    content.metadata.erase("denormals");
    safetensors::write(folder / "old", content);
    EXPECT_EQ(run.checkpoint().load(folder / "old").changes, "");
    content.metadata["denormals"] = "lost";
    safetensors::write(folder / "odd", content);
    EXPECT_THAT(failure([&] { run.checkpoint().load(folder / "odd"); }),
                HasSubstr("denormals: expected 'flushed' or 'kept', found 'lost'"));
  }
  if (!lockstep::detail::can_flush_denormals) GTEST_SKIP() << "not known to flush here";
  EXPECT_EQ(changes(true, true), "");
  EXPECT_EQ(changes(true, false),
            "saved with denormals flushed, resumed with denormals kept: results may differ in "
            "their last bits");
  EXPECT_EQ(changes(false, true),
            "saved with denormals kept, resumed with denormals flushed: results may differ in "
            "their last bits");
}

TEST(Resume, TheFileGrowsOnlyByWhatEachRankNeeds) {
  const TemporaryFolder folder;
  const auto size = [&](int ranks, bool own) {
    auto runs = runs_of(ranks);
    run_groups(ranks, [&](const Group& group) {
      Trainer& run = *runs[static_cast<std::size_t>(group.rank())];
      Checkpoint checkpoint = run.checkpoint();
      if (!own) checkpoint.generator = {};
      checkpoint.save(folder / "c", {}, group);
    });
    return std::filesystem::file_size(folder / "c");
  };
  EXPECT_EQ(size(7, false), size(1, false));
  const auto one = size(1, true);
  const auto random = static_cast<std::uintmax_t>(generator_of(0).get_state().nbytes());
  EXPECT_LT(size(7, true), one + 6 * (random + 200));
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
