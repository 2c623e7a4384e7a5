// Gradients that are a rank's own when the optimizer steps: every one is averaged, or refused.

#include <sstream>

#include "lockstep/distributed_optimizer.h"
#include "parallel/reducer/gradient.h"
#include "tests/matchers.h"
#include "tests/parallel/models.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

using torch::optim::SGD;
using torch::optim::SGDOptions;

/// A model whose step of learning rate 1 subtracts the gradient, on every rank.
struct OneModel {
  explicit OneModel(const Group& world, const DataParallelOptions& options = {})
      : group(world), optimizer(sgd, model, world, options) {}

  at::Tensor loss(double times = 1) {
    return times * model.forward(coefficients(group.rank(), model));
  }

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

  Group group;
  Terms model{two_shapes};
  SGD sgd{model.parameters(), SGDOptions(1)};
  DistributedOptimizer optimizer;
};

/// Replaces every parameter's data as torch::load does.
void save_and_load(torch::nn::Module& model) {
  std::stringstream file;
  torch::serialize::OutputArchive saved;
  model.save(saved);
  saved.save_to(file);
  torch::serialize::InputArchive loaded;
  loaded.load_from(file);
  model.load(loaded);
}

/// As mixed precision or a double-precision check does: LibTorch drops the accumulators.
void convert_and_back(torch::nn::Module& model) {
  model.to(torch::kDouble);
  model.to(torch::kFloat);
}

class LocalGradients : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, LocalGradients, ::testing::Values(1, 2, 3, 7));

TEST_P(LocalGradients, OfReplacedDataAreAveragedByTheWrapper) {
  for (const auto& replace : {save_and_load, convert_and_back}) {
    on_ranks(GetParam(), [&](const Group& world) {
      auto model = std::make_shared<Terms>(two_shapes);
      DistributedDataParallel ddp(model, world, {.verify_every = 0});
      for (int step = 0; step < 3; ++step) {
        if (step > 0) replace(*model);
        for (auto& parameter : model->p) parameter.mutable_grad() = at::Tensor();
        ddp(coefficients(world.rank(), *model)).backward();
        expect_means(*model, world);
      }
    });
  }
}

TEST_P(LocalGradients, AccumulatedByOneRankOnlyAreAveraged) {
  on_ranks(GetParam(), [](const Group& world) {
    OneModel one(world);
    const auto is_first = [](int rank) { return rank == 0; };
    if (is_first(world.rank())) {
      const auto local = one.optimizer.no_sync();
      one.loss().backward();
    }
    one.expect_step_of(1, is_first);
  });
}

TEST_P(LocalGradients, AreNotAveragedTwice) {
  on_ranks(GetParam(), [](const Group& world) {
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
  });
}

/// Whether a rank has a loss, where the last of several has none.
bool has_loss(int rank, int ranks) { return ranks == 1 || rank != ranks - 1; }

TEST_P(LocalGradients, OfARankWithoutALossFollowClipping) {
  on_ranks(GetParam(), [](const Group& world) {
    OneModel one(world, {.verify_every = 0});
    const int ranks = world.size();
    const auto took_part = [ranks](int rank) { return has_loss(rank, ranks); };
    double norm = 0;
    for (std::size_t i = 0; i < one.model.p.size(); ++i) {
      norm += mean_coefficient(ranks, i, one.model.p[i], took_part).square().sum().item<double>();
    }
    norm = std::sqrt(norm);
    for (int step = 0; step < 2; ++step) {
      if (took_part(world.rank())) one.loss().backward();
      torch::nn::utils::clip_grad_norm_(one.model.parameters(), norm / 4);
      one.expect_step_of(0.25, took_part);
      one.optimizer.zero_grad();
    }
  });
}

TEST_P(LocalGradients, OfMeansThatEachRankClipsAreAveraged) {
  // By the norm of gradients of which some are local. clip_grad_norm_ changes no version counter.
  on_ranks(GetParam(), [](const Group& world) {
    OneModel one(world, {.verify_every = 0});
    one.loss().backward();
    {
      auto terms = coefficients(world.rank(), one.model);
      terms[0] = at::Tensor();
      const auto local = one.optimizer.no_sync();
      (10 * one.model.forward(terms)).backward();
    }
    torch::nn::utils::clip_grad_norm_(one.model.parameters(), 0.1);
    std::vector<at::Tensor> expected;
    for (const auto& parameter : one.model.p) {
      const auto mean = parameter.grad().clone();
      world.all_reduce(mean).wait();
      expected.push_back(parameter.detach() - mean / world.size());
    }
    one.optimizer.step();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(near(one.model.p[i].detach(), expected[i])) << i;
    }
  });
}

TEST_P(LocalGradients, ChangedInOneElementAreAveraged) {
  on_ranks(GetParam(), [](const Group& world) {
    Terms model(std::vector<std::vector<std::int64_t>>{{1000}});
    SGD sgd(model.parameters(), SGDOptions(1));
    DistributedOptimizer optimizer(sgd, model, world, {.verify_every = 0});
    model.forward(coefficients(world.rank(), model)).backward();
    auto expected = model.p[0].detach() - mean_coefficient(world.size(), 0, model.p[0]);
    {
      const torch::NoGradGuard no_grad;
      model.p[0].mutable_grad()[437] += world.rank();
    }
    expected[437] -= (world.size() - 1) / 2.0;
    optimizer.step();
    EXPECT_TRUE(near(model.p[0].detach(), expected));
  });
}

TEST(LocalGradient, OfABackwardAfterADroppedMeanIsRefusedWhileARankIsInStep) {
  // The rank without a loss still holds the mean that the others have zeroed.
  for (const int ranks : {2, 3}) {
    for (const bool set_to_none : {true, false}) {
      on_ranks(ranks, [&](const Group& world) {
        OneModel one(world, {.verify_every = 0});
        const auto text = refusal([&] {
          if (has_loss(world.rank(), ranks)) one.loss().backward();
          one.optimizer.zero_grad(set_to_none);
          if (has_loss(world.rank(), ranks)) one.loss().backward();
          one.optimizer.step();
        });
        EXPECT_THAT(text, AllOf(HasSubstr("DistributedOptimizer rank"), HasSubstr("zero_grad()")));
        expect_usable(world);
      });
    }
  }
}

TEST(LocalGradient, OfABackwardAfterAStepThatOneRankLeavesOutIsRefused) {
  for (const auto& options : {DataParallelOptions{}, DataParallelOptions{.shard = Shard::optimizer},
                              DataParallelOptions{.shard = Shard::gradients},
                              DataParallelOptions{.share_memory = true}}) {
    on_ranks(3, [&](const Group& world) {
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
    });
  }
}

TEST(LocalGradient, OfALastStepIsRefusedOnARankWithoutALoss) {
  // Unless its weight is 0.
  for (const bool has_weight : {false, true}) {
    on_ranks(3, [&](const Group& world) {
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
        return one.expect_step_of(1.5, took_part);
      }
      const auto text = refusal([&] {
        backward();
        one.optimizer.step();
      });
      EXPECT_THAT(text, HasSubstr("holds that mean"));
      expect_usable(world);
    });
  }
}

// The weights of such a step multiplied the combination by N ÷ (ranks with a loss).
TEST(LocalGradient, OfARankWithoutALossFollowsAChangedCombination) {
  on_ranks(3, [](const Group& world) {
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
  });
}

TEST(LocalGradient, ChangedInPlaceIsRefusedUnderErrorFeedback) {
  on_ranks(2, [](const Group& world) {
    OneModel one(world, {.strategy = parse_strategy("topk:0.5")});
    one.loss().backward();
    const torch::NoGradGuard no_grad;
    one.model.p[1].mutable_grad().add_(world.rank());
    EXPECT_THAT(refusal([&] { one.optimizer.step(); }),
                AllOf(HasSubstr("parameter p1"), HasSubstr("changed in place")));
    expect_usable(world);
  });
}

TEST(LocalGradient, OfAParameterOutsideTheOptimizerMayAccumulate) {
  for (const char* strategy : {"topk:0.5", "int8", "power_sgd:rank=1", "fp32"}) {
    on_ranks(2, [&](const Group& world) {
      Terms model(two_shapes);
      SGD sgd({model.p[0]}, SGDOptions(1));
      DistributedOptimizer optimizer(sgd, model, world, parse_strategy(strategy));
      for (int step = 0; step < 4; ++step) {
        optimizer.backward_and_update(model.forward(coefficients(world.rank(), model)));
      }
      EXPECT_TRUE(torch::equal(model.p[1].detach(), at::ones({2, 5}))) << strategy;
    });
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
