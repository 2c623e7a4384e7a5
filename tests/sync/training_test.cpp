#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include <utility>

#include "lockstep/distributed_data_parallel.h"
#include "lockstep/distributed_optimizer.h"
#include "tests/matchers.h"
#include "tests/refusal.h"
#include "tests/sync/reference.h"
#include "tests/on_ranks.h"

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
  at::Tensor flat() const {
    const torch::NoGradGuard no_grad;
    return at::cat({model->weight.flatten(), model->bias});
  }
  torch::nn::Linear model;
  torch::optim::SGD sgd{model->parameters(), torch::optim::SGDOptions(0.1)};
};

void step(DistributedOptimizer& optimizer, Linear& linear, const Group& group, int number) {
  optimizer.backward_and_update(linear.model(input(group.rank(), number)).square().mean());
}

TEST(Training, PartialUpdateBecomesEqualBySynchronize) {
  for (const auto* text : {"partial_update", "partial_update:of=gradients"}) {
    spawn(2, [&](const Group& group) {
      at::set_num_threads(1);
      Linear linear;
      DataParallelOptions options{.buckets = {.first = 1, .rest = 1},
                                  .strategy = parse_strategy(text)};
      DistributedOptimizer optimizer(linear.sgd, *linear.model, group, options);
      for (int number = 0; number < 3; ++number) step(optimizer, linear, group, number);
      EXPECT_FALSE(same_on_all_ranks(linear.flat(), group)) << text;
      optimizer.synchronize();
      EXPECT_TRUE(same_on_all_ranks(linear.flat(), group)) << text;
    });
  }
}

TEST(Training, AGradientThatIsNotFiniteLeavesTheGroupUsable) {
  for (const auto* text : {"topk:0.1", "threshold:0.001", "power_sgd:rank=1"}) {
    spawn(3, [&](const Group& group) {
      at::set_num_threads(1);
      Linear linear;
      DistributedDataParallel ddp(
          linear.model.ptr(), group,
          {.buckets = {.first = 1, .rest = 1}, .strategy = parse_strategy(text)});
      const auto backward = [&](double factor) {
        linear.sgd.zero_grad();
        (ddp(input(group.rank(), 0)) * factor).square().mean().backward();
      };
      EXPECT_THAT(refusal([&] {
                    backward(group.rank() == 1 ? std::numeric_limits<double>::quiet_NaN() : 1);
                  }),
                  HasSubstr("on rank 1 has NaN or Inf"));
      backward(1);
      EXPECT_TRUE(linear.model->weight.grad().isfinite().all().item<bool>());
    });
  }
}

TEST(Training, ASecondBackwardMayNotAddToAMeanWithErrorFeedback) {
  const double clips = 0.01, clips_nothing = 1e6;
  for (const auto& [text, norm] : {std::pair("topk:0.2", clips),
                                   {"threshold:0.001", clips},
                                   {"int8", clips},
                                   {"power_sgd:rank=1", clips},
                                   {"topk:0.2", clips_nothing}}) {
    spawn(2, [&, text = text, norm = norm](const Group& group) {
      at::set_num_threads(1);
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
      try {
        loss(0).backward();
        ADD_FAILURE() << text << " went on";
      } catch (const InvalidArgument& error) {
        EXPECT_THAT(error.what(), HasSubstr("a second backward added to a mean"));
      } catch (const CommError& error) {
        EXPECT_THAT(error.what(), HasSubstr("a backward ended by an exception"));
      }
    });
  }
}

// Adasum joins what this step changed, whatever the steps before it were.
TEST(Training, AdasumJoinsTheChangeOfItsOwnStep) {
  spawn(2, [](const Group& group) {
    at::set_num_threads(1);
    Linear linear;
    DistributedOptimizer optimizer(linear.sgd, *linear.model, group,
                                   parse_strategy("warmup:2:adasum"));
    for (int number = 0; number < 2; ++number) step(optimizer, linear, group, number);
    {
      // Nor what the program did to them.
      const torch::NoGradGuard no_grad;
      for (auto& parameter : linear.model->parameters()) parameter.mul_(0.9);
    }
    std::vector<at::Tensor> expected;
    std::vector<std::vector<at::Tensor>> changes;
    for (int rank = 0; rank < 2; ++rank) {
      Linear other;
      const torch::NoGradGuard no_grad;
      other.model->weight.copy_(linear.model->weight);
      other.model->bias.copy_(linear.model->bias);
      {
        const torch::AutoGradMode grad(true);
        other.model(input(rank, 2)).square().mean().backward();
      }
      changes.push_back({-0.1 * other.model->weight.grad(), -0.1 * other.model->bias.grad()});
    }
    const auto before = linear.model->parameters();
    for (std::size_t i = 0; i < before.size(); ++i) {
      const auto& a = changes[0][i];
      const auto& b = changes[1][i];
      const auto ab = (a * b).sum();
      expected.push_back(before[i].detach() + (1 - ab / (2 * (a * a).sum())) * a +
                         (1 - ab / (2 * (b * b).sum())) * b);
    }
    step(optimizer, linear, group, 2);
    EXPECT_TRUE(linear.model->weight.allclose(expected[0], 1e-12, 1e-14));
    EXPECT_TRUE(linear.model->bias.allclose(expected[1], 1e-12, 1e-14));
  });
}

TEST(Training, WeightsAreRefusedWhereParametersAreAveraged) {
  spawn(2, [](const Group& group) {
    Linear linear;
    DistributedOptimizer optimizer(linear.sgd, *linear.model, group,
                                   parse_strategy("local_sgd:period=2"));
    EXPECT_THROW(optimizer.weight(3), InvalidArgument);
    step(optimizer, linear, group, 0);
  });
}

// Elements that a strategy omits at a step count as compression.
TEST(Training, StatisticsCountTurnsThatWereLeftOut) {
  for (const auto& [text, said] : {std::pair{"local_sgd:period=4", "compressed 4.0 times"},
                                   {"partial_update", "compressed 2.0 times"},
                                   {"adasum", "1.6 times as much"}}) {
    spawn(2, [&, said = said, text = text](const Group& group) {
      at::set_num_threads(1);
      Linear linear;
      DistributedOptimizer optimizer(
          linear.sgd, *linear.model, group,
          {.buckets = {.first = 0, .rest = 0}, .strategy = parse_strategy(text)});
      for (int number = 0; number < 8; ++number) step(optimizer, linear, group, number);
      EXPECT_THAT(to_text(group.statistics()), HasSubstr(said)) << text;
    });
  }
}

TEST(Training, WhatIsNotAddedToAMeanIsTaken) {
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
    spawn(2, [&, text = strategy, columns = outputs, of = added](const Group& group) {
      at::set_num_threads(1);
      torch::nn::Linear model(width, columns);
      DistributedDataParallel ddp(model.ptr(), group, {.strategy = parse_strategy(text)});
      for (int step = 0; step < 4; ++step) {
        model->zero_grad(false);
        for (const auto& parameter : model->parameters()) {
          if (parameter.grad().defined()) parameter.mutable_grad().add_(of(parameter));
        }
        EXPECT_NO_THROW(ddp(input(group.rank(), step).to(at::kFloat)).square().mean().backward());
      }
    });
  }
}

// The residual of a parameter that no rank uses is kept until the parameter is used. (int8 rounds
// means, too, and keeps no residual of that.)
TEST(Training, UnusedParametersKeepTheirResiduals) {
  for (const auto* text : {"topk:0.3", "threshold:0.4", "power_sgd:rank=1"}) {
    for (const bool zeroed : {true, false}) {
      spawn(3, [&](const Group& group) {
        at::set_num_threads(1);
        struct Two : torch::nn::Module {
          Two() : a(8, 8), b(8, 8) {
            register_module("a", a);
            register_module("b", b);
          }
          at::Tensor forward(const at::Tensor& x, bool both) { return both ? a(x) + b(x) : a(x); }
          torch::nn::Linear a, b;
        };
        auto model = std::make_shared<Two>();
        DistributedDataParallel ddp(model, group, {.strategy = parse_strategy(text)});
        const auto owed = [&] {
          const auto sum = ddp.state().at("b.weight.residual").clone();
          group.all_reduce(sum).wait();
          return sum;
        };
        const auto x = at::sin(at::arange(32, at::kFloat) * 0.7 + group.rank()).view({4, 8});
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
      });
    }
  }
}

TEST(Training, StatisticsSayWhatWasCompressed) {
  spawn(2, [](const Group& group) {
    at::set_num_threads(1);
    torch::nn::Linear model(100, 10);
    DistributedDataParallel ddp(model.ptr(), group, {.strategy = parse_strategy("topk:0.01")});
    ddp(at::ones({4, 100}) * (1 + group.rank())).sum().backward();
    std::uint64_t bytes = 0;
    std::uint64_t dense = 0;
    for (const auto& row : group.statistics()) {
      if (row.bucket < 0) continue;
      bytes += row.bytes;
      dense += row.dense_bytes;
    }
    EXPECT_EQ(bytes, 11U * 8);
    EXPECT_EQ(dense, 1016U * 4);  // parameters begin at multiples of 32 bytes
    EXPECT_THAT(to_text(group.statistics()), HasSubstr("compressed 46.2 times"));
  });
}

}  // namespace
}  // namespace lockstep::testing
