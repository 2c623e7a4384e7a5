// Gradients that are a rank's own when the optimizer steps: every one is averaged, or refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/distributed_data_parallel.h"
#include "lockstep/distributed_optimizer.h"
#include "lockstep/error.h"
#include "tests/parallel/models.h"
#include "tests/parallel/refusal.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
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
        for (std::size_t i = 0; i < model->p.size(); ++i) {
          EXPECT_TRUE(near(model->p[i].grad(), mean_coefficient(world.size(), i, model->p[i])));
        }
      }
    });
  }
}

TEST_P(LocalGradients, OfReplacedDataAreAveragedByTheOptimizer) {
  for (const auto& replace : {save_and_load, convert_and_back}) {
    for (const bool set_to_none : {true, false}) {
      on_ranks(GetParam(), [&](const Group& world) {
        OneModel one(world, {.verify_every = 0});
        for (int step = 0; step < 4; ++step) {
          if (step == 1 || step == 2) replace(one.model);
          one.loss().backward();
          one.expect_step_of(1);
          one.optimizer.zero_grad(set_to_none);
        }
      });
    }
  }
}

TEST_P(LocalGradients, OfSomeReplacedParametersAreAveraged) {
  on_ranks(GetParam(), [](const Group& world) {
    OneModel one(world, {.verify_every = 0});
    for (int step = 0; step < 3; ++step) {
      auto& parameter = one.model.p[1];
      parameter.set_data(parameter.detach().to(at::kDouble));
      parameter.set_data(parameter.detach().to(at::kFloat));
      one.loss().backward();
      one.expect_step_of(1);
      one.optimizer.zero_grad();
    }
  });
}

TEST_P(LocalGradients, AccumulatedAfterZeroGradAreAveraged) {
  for (const bool set_to_none : {true, false}) {
    on_ranks(GetParam(), [&](const Group& world) {
      OneModel one(world);
      for (int step = 0; step < 2; ++step) {
        one.loss().backward();
        one.optimizer.zero_grad(set_to_none);
        {
          const auto local = one.optimizer.no_sync();
          one.loss().backward();
        }
        one.expect_step_of(1);
        one.optimizer.zero_grad(set_to_none);
      }
    });
  }
}

TEST_P(LocalGradients, AccumulatedOnAMeanAreAveraged) {
  on_ranks(GetParam(), [](const Group& world) {
    OneModel one(world);
    for (int step = 0; step < 2; ++step) {
      one.loss().backward();
      {
        const auto local = one.optimizer.no_sync();
        one.loss(2).backward();
      }
      one.expect_step_of(3);
      one.optimizer.zero_grad();
    }
  });
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

TEST_P(LocalGradients, OfTwoOptimizersThatShareABackwardAreAveraged) {
  // As a GAN: the generator's loss reaches the discriminator, whose gradients are then dropped.
  on_ranks(GetParam(), [](const Group& world) {
    OneModel generator(world);
    OneModel discriminator(world);
    for (int step = 0; step < 3; ++step) {
      (generator.loss() + discriminator.loss(5)).backward();
      generator.expect_step_of(1);
      generator.optimizer.zero_grad();

      discriminator.optimizer.zero_grad();
      {
        const auto local = discriminator.optimizer.no_sync();
        discriminator.loss().backward();
        discriminator.loss().backward();
      }
      discriminator.expect_step_of(2);
      discriminator.optimizer.zero_grad();
    }
  });
}

TEST_P(LocalGradients, OfARankThatFollowsASkippedStepAreAveraged) {
  for (const bool zero_grad : {true, false}) {
    on_ranks(GetParam(), [&](const Group& world) {
      OneModel one(world);
      const int ranks = world.size();
      const auto has_loss = [ranks](int rank) { return ranks == 1 || rank != ranks - 1; };
      one.loss().backward();  // and its step is skipped
      if (zero_grad) one.optimizer.zero_grad();
      if (has_loss(world.rank())) one.loss().backward();
      std::vector<at::Tensor> expected;
      for (std::size_t i = 0; i < one.model.p.size(); ++i) {
        const auto& parameter = one.model.p[i];
        expected.push_back(parameter.detach() - mean_coefficient(ranks, i, parameter, has_loss));
        if (!zero_grad) expected.back() -= mean_coefficient(ranks, i, parameter);
      }
      one.optimizer.step();
      for (std::size_t i = 0; i < one.model.p.size(); ++i) {
        EXPECT_TRUE(near(one.model.p[i].detach(), expected[i])) << i;
      }
      one.optimizer.zero_grad();
      one.loss().backward();
      one.expect_step_of(1);
    });
  }
}

/// Whether a rank has a loss, where the last of several has none.
bool has_loss(int rank, int ranks) { return ranks == 1 || rank != ranks - 1; }

TEST_P(LocalGradients, OfARankWithoutALossFollowZeroGrad) {
  // That rank joins the others' backward when it comes to its step, after its zero_grad().
  for (const bool set_to_none : {true, false}) {
    on_ranks(GetParam(), [&](const Group& world) {
      OneModel one(world, {.verify_every = 0});
      for (int step = 0; step < 2; ++step) {
        if (has_loss(world.rank(), world.size())) one.loss().backward();
        one.optimizer.zero_grad(set_to_none);
        one.expect_step_of(0);
        for (const auto& parameter : one.model.p) {
          const auto& gradient = parameter.grad();
          EXPECT_EQ(gradient.defined(), !set_to_none);
          EXPECT_TRUE(!gradient.defined() || at::equal(gradient, at::zeros_like(gradient)));
        }
        one.optimizer.zero_grad();
        one.loss().backward();
        one.expect_step_of(1);
        one.optimizer.zero_grad();
      }
    });
  }
}

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

TEST_P(LocalGradients, SetByHandByARankWithoutALossAreAveraged) {
  on_ranks(GetParam(), [](const Group& world) {
    OneModel one(world, {.verify_every = 0});
    auto terms = coefficients(world.rank(), one.model);
    for (std::size_t i = 0; i < one.model.p.size(); ++i) {
      one.model.p[i].mutable_grad() = terms[i].clone();
    }
    // The others' backward reaches one of the parameters only, and adds nothing to it.
    terms[1] = at::Tensor();
    if (has_loss(world.rank(), world.size())) (0 * one.model.forward(terms)).backward();
    one.expect_step_of(1);
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
        EXPECT_THAT(text, AllOf(HasSubstr("DistributedOptimizer rank"), HasSubstr("zero_grad()"),
                                HasSubstr("call step()")));
        expect_usable(world);
      });
    }
  }
}

TEST_P(LocalGradients, SetByHandAreAveraged) {
  on_ranks(GetParam(), [](const Group& world) {
    OneModel one(world);
    const auto gradients = [&] {
      return torch::autograd::grad({one.loss()}, {one.model.p[0], one.model.p[1]});
    };
    // In place of no gradient, of a mean that was zeroed, and of a mean.
    for (int step = 0; step < 4; ++step) {
      const auto own = gradients();
      for (std::size_t i = 0; i < own.size(); ++i) {
        auto& gradient = one.model.p[i].mutable_grad();
        if (step < 2) {
          gradient = own[i];
        } else {
          gradient.copy_(own[i]);
        }
      }
      one.expect_step_of(1);
      if (step == 1) one.optimizer.zero_grad(/*set_to_none=*/false);
      if (step == 0) one.optimizer.zero_grad();
    }
  });
}

TEST_P(LocalGradients, SetByHandForOneParameterLeaveTheOthersAlone) {
  on_ranks(GetParam(), [](const Group& world) {
    OneModel one(world);
    auto terms = coefficients(world.rank(), one.model);
    const auto by_hand = terms[0];
    terms[0] = at::Tensor();
    one.model.forward(terms).backward();
    const auto mean = one.model.p[1].grad().clone();
    one.model.p[0].mutable_grad() = by_hand;
    one.expect_step_of(1);
    EXPECT_TRUE(torch::equal(one.model.p[1].grad(), mean));
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

}  // namespace
}  // namespace lockstep::testing
