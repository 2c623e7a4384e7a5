// Gradients that are a rank's own when the optimizer steps: every one is averaged, or refused.
#include <sstream>

#include "parallel/reducer/gradient.h"
#include "tests/matchers.h"
#include "tests/parallel/models.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

struct OneModel : OptimizedTerms {
  using OptimizedTerms::OptimizedTerms;

  /// Whether the step has subtracted so many means of the coefficients from the values before it.
  void expect_step_of(
      double means, const std::function<bool(int)>& took_part = [](int) { return true; }) {
    std::vector<at::Tensor> before;
    for (const auto& parameter : model.p) before.push_back(parameter.detach().clone());
    optimizer.step();
    for (std::size_t i = 0; i < model.p.size(); ++i) {
      const auto expected =
          before[i] - means * mean_coefficient(group.size(), i, model.p[i], took_part);
      EXPECT_TRUE(near(model.p[i].detach(), expected)) << "p" << i << ": " << model.p[i];
    }
  }
};

/// Replaces every parameter's data.
void save_and_load(std::shared_ptr<Terms> model) {
  std::stringstream file;
  torch::save(model, file);
  torch::load(model, file);
}

/// As mixed precision or a double-precision check does: LibTorch drops the accumulators.
void convert_and_back(std::shared_ptr<Terms> model) {
  model->to(torch::kDouble);
  model->to(torch::kFloat);
}

SUITE_ON_RANKS(LocalGradients, 1, 2, 3, 7);

TEST_P_ON_RANKS(LocalGradients, OfReplacedDataAreAveragedByTheWrapper) {
  for (const auto& replace : {save_and_load, convert_and_back}) {
    auto model = make_terms(two_shapes);
    DistributedDataParallel ddp(model, world, {.verify_every = 0});
    for (int step = 0; step < 3; ++step) {
      if (step > 0) replace(model);
      for (auto& parameter : model->p) parameter.mutable_grad() = at::Tensor();
      ddp(coefficients(world.rank(), *model)).backward();
      expect_means(*model, world);
    }
  }
}

TEST_P_ON_RANKS(LocalGradients, AreNotAveragedTwice) {
  OneModel one(world);
  for (int step = 0; step < 3; ++step) {
    one.loss().backward();
    torch::nn::utils::clip_grad_norm_(one.model.parameters(), 1e3);
    torch::nn::utils::clip_grad_value_(one.model.parameters(), 1e3);
    const auto gradient = one.model.p[0].grad().clone();
    const auto exchanges = [&] {
      std::uint64_t count = 0;
      for (const auto& row : world.statistics()) count += row.bucket >= 0 ? row.count : 0;
      return count;
    };
    const auto before = exchanges();
    one.expect_step_of(1);
    EXPECT_EQ(exchanges(), before);
    EXPECT_TRUE(torch::equal(one.model.p[0].grad(), gradient));
    one.optimizer.zero_grad();
  }
}

/// Whether a rank has a loss, where the last of several has none.
bool has_loss(int rank, int ranks) { return ranks == 1 || rank != ranks - 1; }

TEST_P_ON_RANKS(LocalGradients, OfARankWithoutALossFollowClipping) {
  OneModel one(world, {.verify_every = 0});
  const int ranks = world.size();
  const auto took_part = [ranks](int rank) { return has_loss(rank, ranks); };
  double norm = 0;
  for (std::size_t i = 0; i < one.model.p.size(); ++i)
    norm += mean_coefficient(ranks, i, one.model.p[i], took_part).square().sum().item<double>();
  norm = std::sqrt(norm);
  for (int step = 0; step < 2; ++step) {
    if (took_part(world.rank())) one.loss().backward();
    torch::nn::utils::clip_grad_norm_(one.model.parameters(), norm / 4);
    one.expect_step_of(0.25, took_part);
    one.optimizer.zero_grad();
  }
}

TEST_P_ON_RANKS(LocalGradients, ChangedInOneElementAreAveraged) {
  OneModel one(world, {.verify_every = 0}, {{1000}});
  const auto& p = one.model.p[0];
  one.loss().backward();
  auto expected = p.detach() - mean_coefficient(world.size(), 0, p);
  {
    const torch::NoGradGuard no_grad;
    p.mutable_grad()[437] += world.rank();
  }
  expected[437] -= (world.size() - 1) / 2.0;
  one.optimizer.step();
  EXPECT_TRUE(near(p.detach(), expected));
}

// The rank without a loss still holds the mean that the others have zeroed.
TEST_ON_RANKS(LocalGradient, OfABackwardAfterADroppedMeanIsRefusedWhileARankIsInStep, 2, 3) {
  for (const bool set_to_none : {true, false}) {
    OneModel one(world, {.verify_every = 0});
    const auto text = refusal([&] {
      if (has_loss(world.rank(), world.size())) one.loss().backward();
      one.optimizer.zero_grad(set_to_none);
      if (has_loss(world.rank(), world.size())) one.loss().backward();
      one.optimizer.step();
    });
    EXPECT_THAT(text, AllOf(HasSubstr("DistributedOptimizer rank"), HasSubstr("zero_grad()")));
    expect_usable(world);
  }
}

TEST_ON_RANKS(LocalGradient, OfABackwardAfterAStepThatOneRankLeavesOutIsRefused, 3) {
  for (const auto& options : every_update) {
    OneModel one(world, options);
    const auto text = refusal([&] {
      one.loss().backward();
      if (world.rank() == 0) {
        one.optimizer.zero_grad();
        one.loss().backward();
      }
      one.optimizer.step();
    });
    EXPECT_THAT(text, HasSubstr("while another rank is in step() and holds that mean"));
    expect_usable(world);
  }
}

TEST_ON_RANKS(LocalGradient, OfALastStepIsRefusedOnARankWithoutALoss, 3) {
  // Unless its weight is 0.
  for (const bool has_weight : {false, true}) {
    OneModel one(world, {.verify_every = 0});
    const bool has_loss = world.rank() != 0;
    const auto took_part = [](int rank) { return rank != 0; };
    one.loss().backward();
    one.optimizer.step();
    if (has_loss) one.optimizer.zero_grad();
    if (has_weight) one.optimizer.weight(has_loss ? 1 : 0);
    const auto backward = [&] {
      if (has_loss) one.loss().backward();
    };
    if (has_weight) {
      backward();
      one.expect_step_of(1.5, took_part);
      continue;
    }
    const auto text = refusal([&] {
      backward();
      one.optimizer.step();
    });
    EXPECT_THAT(text, HasSubstr("holds that mean"));
    expect_usable(world);
  }
}

// The weights of such a step multiplied the combination by N ÷ (ranks with a loss).
TEST_ON_RANKS(LocalGradient, OfARankWithoutALossFollowsAChangedCombination, 3) {
  OneModel one(world, {.strategy = Adasum{.of = SyncTarget::gradients}, .verify_every = 0});
  std::vector<at::Tensor> expected;
  if (has_loss(world.rank(), world.size())) {
    one.loss().backward();
    const torch::NoGradGuard no_grad;
    for (auto& p : one.model.p) expected.push_back(p - p.mutable_grad().mul_(0.5));
  }
  one.optimizer.step();
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(near(one.model.p[i].detach(), expected[i])) << i;
}

TEST_ON_RANKS(LocalGradient, ChangedInPlaceIsRefusedUnderErrorFeedback, 2) {
  OneModel one(world, {.strategy = parse_strategy("topk:0.5")});
  one.loss().backward();
  const torch::NoGradGuard no_grad;
  one.model.p[1].mutable_grad().add_(world.rank());
  EXPECT_THAT(refusal([&] { one.optimizer.step(); }),
              AllOf(HasSubstr("parameter p1"), HasSubstr("changed in place")));
  expect_usable(world);
}

TEST_ON_RANKS(LocalGradient, OfAParameterOutsideTheOptimizerMayAccumulate, 2) {
  for (const char* strategy : {"topk:0.5", "int8", "power_sgd:rank=1", "fp32"}) {
    Terms model(two_shapes);
    torch::optim::SGD sgd({model.p[0]}, 1);
    DistributedOptimizer optimizer(sgd, model, world, parse_strategy(strategy));
    for (int step = 0; step < 4; ++step)
      optimizer.backward_and_update(model.forward(coefficients(world.rank(), model)));
    EXPECT_TRUE(torch::equal(model.p[1].detach(), at::ones({2, 5}))) << strategy;
  }
}

TEST(GradientRecord, KeepsAMeanThatOneChangeIsAPartOf) {
  using detail::GradientState;
  const auto values = at::ones({2});
  detail::GradientRecord record;
  record.set_averaged(values);
  values.mul_(2);
  EXPECT_EQ(record.state(values, values), GradientState::edited);
  record.keep_average(values, values);
  EXPECT_EQ(record.state(values, values), GradientState::averaged);
  values.mul_(2).mul_(2);
  record.keep_average(values, values);
  EXPECT_EQ(record.state(values, values), GradientState::edited);
}

}  // namespace
}  // namespace lockstep::testing
