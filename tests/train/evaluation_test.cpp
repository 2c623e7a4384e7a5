// The score of a model does not depend on the number of ranks that evaluate it.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>

#include "lockstep/datasets.h"
#include "lockstep/metrics.h"
#include "lockstep/samplers.h"
#include "tests/parallel/models.h"

namespace lockstep {
namespace {

Score evaluate(torch::nn::Linear& model, const Mnist& digits, const Group& world) {
  const torch::NoGradGuard no_grad;
  Tally tally(3);
  auto loader =
      torch::data::make_data_loader(digits, EvaluationSampler(digits.size().value(), world), 64);
  for (auto& batch : *loader) {
    const at::Tensor outputs = model(batch.data.flatten(1));
    tally.add(torch::nn::functional::cross_entropy(outputs, batch.target), outputs, batch.target);
  }
  return tally.score(world);
}

TEST(Evaluation, GivesTheSameAccuracyOnAnyNumberOfRanks) {
  const Mnist digits(LOCKSTEP_SOURCE_DIR "/examples/data/mnist", Mnist::Split::test);
  std::optional<Score> expected;
  for (const int ranks : {1, 2, 3, 7}) {
    testing::on_ranks(ranks, [&](const Group& world) {
      torch::nn::Linear model(784, 10);
      testing::set_values(*model, 5);
      const Score score = evaluate(model, digits, world);
      if (ranks == 1) expected = score;
      EXPECT_EQ(score.samples, 2000);
      EXPECT_EQ(score.accuracy, expected->accuracy) << ranks << " ranks";
      EXPECT_EQ(score.top, expected->top) << ranks << " ranks";
      EXPECT_NEAR(score.loss, expected->loss, 1e-6 * expected->loss);
    });
  }
  EXPECT_GT(expected->accuracy, 0.02);
  EXPECT_GT(expected->top, expected->accuracy);
}

}  // namespace
}  // namespace lockstep
