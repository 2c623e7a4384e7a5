#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include "lockstep/distributed_data_parallel.h"
#include "lockstep/distributed_optimizer.h"
#include "tests/refusal.h"
#include "tests/sync/on_hosts.h"
#include "tests/sync/reference.h"

// Strategies under the two wrappers.

namespace lockstep::testing {
namespace {

constexpr std::int64_t width = 6;

at::Tensor input(int rank, int step) {
  return at::sin(at::arange(4 * width, at::kDouble) * 0.7 + 10 * rank + step).view({4, width});
}

struct Linear {
  Linear() : model(torch::nn::LinearOptions(width, width)) {
    const torch::NoGradGuard no_grad;
    model->to(at::kDouble);
    for (auto& parameter : model->parameters()) parameter.fill_(0.1);
  }
  torch::nn::Linear model;
  torch::optim::SGD sgd{model->parameters(), torch::optim::SGDOptions(0.1)};
};

void step(DistributedOptimizer& optimizer, Linear& linear, const Group& group, int number) {
  optimizer.backward_and_update(linear.model(input(group.rank(), number)).square().mean());
}

TEST_ON_RANKS(Training, AGradientThatIsNotFiniteLeavesTheGroupUsable, 3) {
  for (const auto* text : {"topk:0.1", "threshold:0.001", "power_sgd:rank=1"}) {
    Linear linear;
    DistributedDataParallel ddp(
        linear.model.ptr(), world,
        {.buckets = {.first = 1, .rest = 1}, .strategy = parse_strategy(text)});
    const auto backward = [&](double factor) {
      linear.sgd.zero_grad();
      (ddp(input(world.rank(), 0)) * factor).square().mean().backward();
    };
    EXPECT_THAT(refusal([&] {
                  backward(world.rank() == 1 ? std::numeric_limits<double>::quiet_NaN() : 1);
                }),
                HasSubstr("on rank 1 has NaN or Inf"));
    backward(1);
    EXPECT_TRUE(linear.model->weight.grad().isfinite().all().item<bool>());
  }
}

TEST(Training, ASecondBackwardMayNotAddToAMeanWithErrorFeedback) {
  const double clips = 0.01, clips_nothing = 1e6;
  for (const auto& [text, norm] : {std::pair("topk:0.2", clips),
                                   {"threshold:0.001", clips},
                                   {"int8", clips},
                                   {"power_sgd:rank=1", clips},
                                   {"topk:0.2", clips_nothing}}) {
    on_ranks(2, [&](const Group& group) {
      torch::nn::Linear model(width, width);
      const auto loss = [&](int step) {
        return model(input(group.rank(), step).to(at::kFloat)).square().mean();
      };
      torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1));
      DistributedOptimizer optimizer(sgd, *model, group, parse_strategy(text));
      // However the gradients are made zero, and whatever comes in between.
      for (int step = 0; step < 6; ++step) {
        if (step % 3 == 0) optimizer.zero_grad();
        if (step % 3 == 1) optimizer.zero_grad(false);
        if (step % 3 == 2) model->zero_grad(false);
        if (step > 3) {
          const auto paused = optimizer.no_sync();
          loss(step).backward();
        }
        loss(step).backward();
        torch::nn::utils::clip_grad_norm_(model->parameters(), norm);
        optimizer.step();
      }
      EXPECT_THAT(message_of<Error>([&] { loss(0).backward(); }),
                  AnyOf(HasSubstr("a second backward added to a mean"),
                        HasSubstr("a backward ended by an exception")))
          << text;
    });
  }
}

// Adasum joins what this step changed, whatever the steps before it were.
TEST_ON_RANKS(Training, AdasumJoinsTheChangeOfItsOwnStep, 2) {
  Linear linear;
  DistributedOptimizer optimizer(linear.sgd, linear.model, world,
                                 parse_strategy("warmup:2:adasum"));
  for (int number = 0; number < 2; ++number) step(optimizer, linear, world, number);
  {
    // Nor what the program did to them.
    const torch::NoGradGuard no_grad;
    for (auto& parameter : linear.model->parameters()) parameter.mul_(0.9);
  }
  std::vector<at::Tensor> expected;
  const auto before = linear.model->parameters();
  const auto change_of = [&](int rank) {
    const auto loss = linear.model(input(rank, 2)).square().mean();
    return torch::autograd::grad({loss}, before);
  };
  const auto gradients = change_of(0), others = change_of(1);
  for (std::size_t i = 0; i < before.size(); ++i) {
    const auto a = -0.1 * gradients[i], b = -0.1 * others[i];
    const auto ab = (a * b).sum();
    expected.push_back(before[i].detach() + (1 - ab / (2 * (a * a).sum())) * a +
                       (1 - ab / (2 * (b * b).sum())) * b);
  }
  step(optimizer, linear, world, 2);
  EXPECT_TRUE(linear.model->weight.allclose(expected[0], 1e-12, 1e-14));
  EXPECT_TRUE(linear.model->bias.allclose(expected[1], 1e-12, 1e-14));
}

// Elements that a strategy omits at a step count as compression, and those that it packs.
TEST(Training, StatisticsCountTurnsThatWereLeftOutAndWeightsAreRefused) {
  for (const auto& [text, said, takes_weights] :
       {std::tuple{"local_sgd:period=4", "compressed 4.0 times", false},
        {"partial_update", "compressed 2.0 times", true},
        {"adasum", "1.6 times as much", false},
        // 36 + 6 doubles over 8 + 2, each with an index
        {"topk:0.2", "compressed 2.8 times", true}}) {
    on_ranks(2, [&](const Group& group) {
      Linear linear;
      DistributedOptimizer optimizer(
          linear.sgd, *linear.model, group,
          {.buckets = {.first = 0, .rest = 0}, .strategy = parse_strategy(text)});
      if (!takes_weights) {
        EXPECT_THROW(optimizer.weight(3), InvalidArgument);
      }
      for (int number = 0; number < 8; ++number) step(optimizer, linear, group, number);
      EXPECT_THAT(to_text(group.statistics()), HasSubstr(said)) << text;
    });
  }
}

TEST_ON_RANKS(Training, WhatIsNotAddedToAMeanIsTaken, 2) {
  struct Case {
    const char* strategy;
    std::int64_t outputs;
    std::function<at::Tensor(const at::Tensor& parameter)> added;  ///< to gradients of zero
  };
  // A weight decay by hand; and one element that is not zero, which could be any multiple of a
  // mean.
  for (const auto& [strategy, outputs, added] :
       {Case{"topk:0.5", width,
             [](const at::Tensor& parameter) { return parameter.detach() * 0.01; }},
        Case{"topk:0.1", 1,
             [](const at::Tensor& parameter) { return parameter.grad().sign() + 1e-3; }}}) {
    torch::nn::Linear model(width, outputs);
    DistributedDataParallel ddp(model.ptr(), world, {.strategy = parse_strategy(strategy)});
    for (int step = 0; step < 4; ++step) {
      model->zero_grad(false);
      for (const auto& parameter : model->parameters())
        if (parameter.grad().defined()) parameter.mutable_grad().add_(added(parameter));
      EXPECT_NO_THROW(ddp(input(world.rank(), step).to(at::kFloat)).square().mean().backward());
    }
    EXPECT_THAT(refusal([&] { ddp(input(world.rank(), 4).to(at::kFloat)).sum().backward(); }),
                HasSubstr("a second backward added to a mean"));
  }
}

// The residual of a parameter that no rank uses is kept until the parameter is used. (int8 rounds
// means, too, and keeps no residual of that.)
TEST_ON_RANKS(Training, UnusedParametersKeepTheirResiduals, 3) {
  for (const auto* text : {"topk:0.3", "threshold:0.4", "power_sgd:rank=1"}) {
    for (const bool zeroed : {true, false}) {
      struct Two : torch::nn::Module {
        at::Tensor forward(const at::Tensor& x, bool both) { return both ? a(x) + b(x) : a(x); }
        torch::nn::Linear a = register_module("a", torch::nn::Linear(8, 8));
        torch::nn::Linear b = register_module("b", torch::nn::Linear(8, 8));
      };
      // Of several ranks on a host, one keeps the residual.
      for (const auto& group : {world, on_hosts(world, {0, 0, 1})}) {
        auto model = std::make_shared<Two>();
        DistributedDataParallel ddp(model, group, {.strategy = parse_strategy(text)});
        const auto owed = [&] {
          auto sum = at::zeros({8, 8});
          const auto state = ddp.state();
          if (const auto own = state.find("b.weight.residual"); own != state.end())
            sum += own->second;
          world.all_reduce(sum).wait();
          return sum;
        };
        const auto x = at::sin(at::arange(32, at::kFloat) * 0.7 + world.rank()).view({4, 8});
        ddp(x, true).square().mean().backward();
        const auto before = owed();
        EXPECT_GT(before.norm().item<double>(), 0) << text;
        const auto mean = model->b->weight.grad().clone();
        for (int step = 0; step < 4; ++step) {
          zeroed ? model->zero_grad() : model->a->zero_grad();
          ddp(x, false).square().mean().backward();
          EXPECT_TRUE(owed().allclose(before, 1e-4, 1e-6)) << text;
        }
        if (zeroed) {
          EXPECT_FALSE(model->b->weight.grad().defined()) << text;
        } else {
          EXPECT_TRUE(model->b->weight.grad().equal(mean)) << text;
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
