#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <limits>

#include "lockstep/core/error.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/distributed_optimizer.h"
#include "lockstep/sync/strategy.h"
#include "reference.h"

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

bool same_on_all_ranks(const at::Tensor& values, const Group& group) {
  auto all = at::empty({group.size() * values.numel()}, values.options());
  group.all_gather(all, values.contiguous()).wait();
  const auto rows = all.view({group.size(), -1});
  return rows.eq(rows[0]).all().item<bool>();
}

void step(DistributedOptimizer& optimizer, Linear& linear, const Group& group, int number) {
  optimizer.backward_and_update(linear.model(input(group.rank(), number)).square().mean());
}

TEST(Training, ReplicasMeetWhenTheStrategySays) {
  for (const auto* text : {"local_sgd:period=3", "post_local_sgd:start=1,period=2", "adasum"}) {
    spawn(3, [&](const Group& group) {
      at::set_num_threads(1);
      Linear linear;
      DistributedOptimizer optimizer(linear.sgd, *linear.model, group, parse_strategy(text));
      for (int number = 0; number < 3; ++number) step(optimizer, linear, group, number);
      EXPECT_TRUE(same_on_all_ranks(linear.flat(), group)) << text;
      EXPECT_FALSE(linear.flat().eq(0.1).all().item<bool>());
    });
  }
}

// One rank's steps alone, averaged at the end of the period, is what local SGD is.
TEST(Training, LocalSgdAveragesWhatRanksDidAlone) {
  constexpr int ranks = 3;
  constexpr int period = 4;
  auto mean = at::zeros({width * width + width}, at::kDouble);
  for (int rank = 0; rank < ranks; ++rank) {
    Linear alone;
    for (int number = 0; number < period; ++number) {
      alone.sgd.zero_grad();
      alone.model(input(rank, number)).square().mean().backward();
      alone.sgd.step();
    }
    mean += alone.flat() / ranks;
  }
  spawn(ranks, [&](const Group& group) {
    at::set_num_threads(1);
    Linear linear;
    DistributedOptimizer optimizer(linear.sgd, *linear.model, group,
                                   parse_strategy("local_sgd:period=4"));
    for (int number = 0; number < period; ++number) step(optimizer, linear, group, number);
    EXPECT_TRUE(linear.flat().allclose(mean, 1e-12, 1e-12));
  });
}

TEST(Training, PartialUpdateBecomesEqualBySynchronize) {
  for (const auto* text : {"partialUpdate", "partialUpdate:of=gradients"}) {
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

TEST(Training, EveryStrategyLearns) {
  for (const auto* text :
       {"fp32", "topk:0.2", "topk:0.2,feedback=off", "threshold:0.001", "powersgd:rank=1",
        "warmup:2:topk:0.2", "adasum", "local_sgd:period=2", "partialUpdate"}) {
    spawn(2, [&](const Group& group) {
      at::set_num_threads(1);
      Linear linear;
      DistributedOptimizer optimizer(linear.sgd, *linear.model, group, parse_strategy(text));
      const auto loss = [&] { return linear.model(input(group.rank(), 0)).square().mean(); };
      const double before = loss().item<double>();
      for (int number = 0; number < 30; ++number) optimizer.backward_and_update(loss());
      EXPECT_LT(loss().item<double>(), 0.7 * before) << text;
    });
  }
}

TEST(Training, AGradientThatIsNotFiniteLeavesTheGroupUsable) {
  for (const auto* text : {"topk:0.1", "threshold:0.001", "powersgd:rank=1"}) {
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
      try {
        backward(group.rank() == 1 ? std::numeric_limits<double>::quiet_NaN() : 1);
        ADD_FAILURE() << text << " went on";
      } catch (const InvalidArgument& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr("on rank 1 has NaN or Inf"));
      }
      backward(1);
      EXPECT_TRUE(linear.model->weight.grad().isfinite().all().item<bool>());
    });
  }
}

}  // namespace
}  // namespace lockstep::testing
