#include <torch/nn.h>
#include <torch/optim.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/checkpoint.h"
#include "lockstep/distributed_optimizer.h"
#include "lockstep/fused_optimizers.h"
#include "lockstep/moving_average.h"
#include "tests/groups.h"
#include "tests/matchers.h"
#include "tests/temporary_folder.h"
#include "tests/train/average.h"
#include "tests/train/checkpoint_failure.h"
#include "tests/train/training.h"

// Averages in checkpoints and on several ranks, and other objects of Checkpoint::extra.

namespace lockstep::testing {
namespace {

TEST(MovingAverage, AResumedRunHasTheSameBits) {
  const TemporaryFolder folder;
  for (const bool bias_correction : {false, true}) {
    const MovingAverageOptions options{
        .decay = 0.9, .bias_correction = bias_correction, .average_buffers = true};
    for (const int saved : {0, 1, 3}) {
      Training whole(kinds[2]);
      MovingAverage average(*whole.model, options);
      const auto train = [](Training& training, MovingAverage& mean, int from, int to) {
        for (int step = from; step < to; ++step) {
          training.step(step);
          mean.update();
        }
      };
      train(whole, average, 0, saved);
      Checkpoint{.model = *whole.model, .optimizer = *whole.optimizer, .extra = {{"ema", average}}}
          .save(folder / "c");
      train(whole, average, saved, 6);

      Training again(kinds[2]);
      MovingAverage resumed(*again.model, options);
      train(again, resumed, 20, 22);
      Checkpoint{.model = *again.model, .optimizer = *again.optimizer, .extra = {{"ema", resumed}}}
          .load(folder / "c");
      EXPECT_EQ(resumed.updates(), saved);
      train(again, resumed, saved, 6);
      expect_same(again.values(), whole.values());
      expect_same(values_of(resumed, *again.model), values_of(average, *whole.model));
    }
  }
}

TEST(CheckpointExtra, MustBeInTheFileAndHaveAName) {
  const TemporaryFolder folder;
  Single model;
  MovingAverage average(model);
  MovingAverage second(model);
  const auto save = [&](const std::string& name) {
    Checkpoint{.model = model, .extra = {{name, average}}}.save(folder / "c");
  };
  const auto load = [&](const std::string& name) {
    Checkpoint{.model = model, .extra = {{name, average}}}.load(folder / "c");
  };
  for (const char* name : {"", "a/b"}) {
    EXPECT_THAT(failure([&] { save(name); }), HasSubstr("': expected a name without '/'"));
  }
  save("ema");
  load("ema");
  EXPECT_THAT(failure([&] { load("em"); }),
              HasSubstr("c: extra 'em': is in the program, but not in the file"));
  // A program without the object ignores it.
  Checkpoint{.model = model}.load(folder / "c");
  Checkpoint{.model = model}.save(folder / "c");
  EXPECT_THAT(failure([&] { load("ema"); }), HasSubstr("extra 'ema': is in the program"));
}

/// Trains on ranks and returns each rank's averaged and trained parameters. With a path, the run
/// saves a checkpoint in the middle and continues from it.
std::vector<std::vector<at::Tensor>> averages_of_ranks(int ranks, bool share_memory,
                                                       const std::filesystem::path& path = {}) {
  std::vector<std::vector<at::Tensor>> result(static_cast<std::size_t>(ranks));
  run_groups(ranks, [&](const Group& group) {
    at::set_num_threads(1);
    std::shared_ptr<Net> model;
    group.in_turn([&] {
      torch::manual_seed(5);
      model = std::make_shared<Net>(7);
    });
    FusedSgd sgd(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    DistributedOptimizer optimizer(sgd, *model, group, {.share_memory = share_memory});
    MovingAverage average(*model, {.decay = 0.75});
    const Checkpoint checkpoint{
        .model = *model, .optimizer = sgd, .strategy = optimizer, .extra = {{"ema", average}}};
    for (int step = 0; step < 6; ++step) {
      if (step == 3 && !path.empty()) {
        checkpoint.save(path, {}, group);
        // load() must undo this step.
        optimizer.backward_and_update(model->forward(torch::ones({4, 4})).square().mean());
        average.update();
        checkpoint.load(path, group);
      }
      auto generator = at::make_generator<at::CPUGeneratorImpl>(
          static_cast<std::uint64_t>(step * ranks + group.rank()));
      const at::Tensor x = torch::randn({4, 4}, generator);
      optimizer.backward_and_update((model->forward(x) - 1).square().mean());
      average.update();
      if (step % 2 == 0) {
        // Other ranks train on in the memory of the parameters, or have not come so far.
        const at::NoGradGuard no_grad;
        const auto averaged = average.apply();
        const auto before = model->first->weight.clone();
        model->forward(x);
        EXPECT_TRUE(model->first->weight.equal(before));
      }
    }
    auto& own = result[static_cast<std::size_t>(group.rank())];
    {
      const auto averaged = average.apply();
      for (const auto& tensor : model->parameters()) own.push_back(tensor.detach().clone());
    }
    for (const auto& tensor : model->parameters()) own.push_back(tensor.detach().clone());
    group.barrier().wait();
  });
  return result;
}

class AverageOfRanks : public ::testing::TestWithParam<int> {};

TEST_P(AverageOfRanks, IsTheSameOnEveryRankAndAfterResuming) {
  const TemporaryFolder folder;
  std::vector<at::Tensor> of_replicas;
  for (const bool share_memory : {false, true}) {
    const auto expected = averages_of_ranks(GetParam(), share_memory);
    for (const auto& values : expected) expect_same(values, expected[0]);
    const auto resumed = averages_of_ranks(GetParam(), share_memory, folder / "c");
    for (const auto& values : resumed) expect_same(values, expected[0]);
    if (!share_memory) of_replicas = expected[0];
    for (std::size_t i = 0; i < of_replicas.size(); ++i)
      EXPECT_TRUE(of_replicas[i].allclose(expected[0][i], 1e-4, 1e-5)) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, AverageOfRanks, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace lockstep::testing
