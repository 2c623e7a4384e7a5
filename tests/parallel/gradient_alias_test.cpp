// A gradient that lies in a bucket: what LibTorch does with it, and what it may not notice.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/exchange.h"
#include "lockstep/init.h"
#include "parallel/reducer/gradient.h"

namespace {

using Step = std::function<void(torch::optim::Optimizer&, const std::function<at::Tensor()>&)>;

std::vector<at::Tensor> parameters_of(torch::nn::Module& model) { return model.parameters(); }

/// The same small model twice: one with ordinary gradients, one with gradients in a bucket.
struct Pair {
  explicit Pair(const lockstep::Group& group) {
    plain->to(torch::kDouble);
    aliased->to(torch::kDouble);
    const torch::NoGradGuard no_grad;
    auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
    for (auto& parameter : plain->parameters()) parameter.normal_(0, 1, generator);
    auto from = plain->parameters();
    auto to = aliased->parameters();
    std::size_t offset = 0;
    std::vector<lockstep::Bucket::Slice> slices;
    for (std::size_t i = 0; i < from.size(); ++i) {
      to[i].copy_(from[i]);
      slices.push_back({.name = "p", .parameter = to[i], .offset = offset});
      offset += static_cast<std::size_t>(to[i].numel()) + 3;
    }
    bucket = std::make_unique<lockstep::Bucket>(0, offset, at::kDouble, slices, group);
    input = torch::empty({5, 4}, torch::kDouble).normal_(0, 1, generator);
  }

  /// As the reducer does after each gradient.
  void move_gradients() {
    const torch::NoGradGuard no_grad;
    for (const auto& slice : bucket->slices()) {
      auto& gradient = slice.parameter.mutable_grad();
      if (!gradient.defined() || gradient.is_same(slice.values)) continue;
      slice.values.copy_(gradient);
      gradient = slice.values;
    }
  }

  at::Tensor loss(torch::nn::Sequential& model) { return model->forward(input).pow(2).mean(); }

  void expect_equal() {
    auto a = parameters_of(*plain);
    auto b = parameters_of(*aliased);
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i])) << i;
  }

  torch::nn::Sequential plain{torch::nn::Linear(4, 3), torch::nn::Tanh(), torch::nn::Linear(3, 2)};
  torch::nn::Sequential aliased{torch::nn::Linear(4, 3), torch::nn::Tanh(),
                                torch::nn::Linear(3, 2)};
  std::unique_ptr<lockstep::Bucket> bucket;
  at::Tensor input;
};

void in_group(const std::function<void(Pair&)>& fn) {
  lockstep::spawn(1, [&](const lockstep::Group& group) {
    Pair pair(group);
    fn(pair);
  });
}

using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

template <class O, class Options>
MakeOptimizer maker(Options options) {
  return [options](std::vector<at::Tensor> parameters) -> std::unique_ptr<torch::optim::Optimizer> {
    return std::make_unique<O>(std::move(parameters), options);
  };
}

class GradientAliasWith : public testing::TestWithParam<std::pair<const char*, MakeOptimizer>> {};

TEST_P(GradientAliasWith, StepsAsWithOrdinaryGradients) {
  for (const bool set_to_none : {true, false}) {
    in_group([&](Pair& pair) {
      const auto run = [&](torch::nn::Sequential& model, bool alias) {
        const auto optimizer = GetParam().second(model->parameters());
        for (int step = 0; step < 5; ++step) {
          optimizer->step([&] {
            optimizer->zero_grad(set_to_none);
            auto loss = pair.loss(model);
            loss.backward();
            if (alias) pair.move_gradients();
            torch::nn::utils::clip_grad_norm_(model->parameters(), 0.5);
            return loss;
          });
        }
      };
      run(pair.plain, false);
      run(pair.aliased, true);
      pair.expect_equal();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Optimizers, GradientAliasWith,
    testing::Values(
        std::pair("SGD", maker<torch::optim::SGD>(
                             torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(1e-3))),
        std::pair("Adam", maker<torch::optim::Adam>(torch::optim::AdamOptions(0.1).amsgrad(true))),
        std::pair("AdamW", maker<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1))),
        std::pair("RMSprop", maker<torch::optim::RMSprop>(
                                 torch::optim::RMSpropOptions(0.01).momentum(0.9).centered(true))),
        std::pair("Adagrad", maker<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.1))),
        std::pair("LBFGS",
                  maker<torch::optim::LBFGS>(torch::optim::LBFGSOptions(0.1).max_iter(3)))),
    [](const auto& instance) { return instance.param.first; });

TEST(GradientAlias, IsNoViewAndSharesTheBucketsMemory) {
  in_group([](Pair& pair) {
    for (const auto& slice : pair.bucket->slices()) {
      EXPECT_FALSE(slice.values.is_view());
      EXPECT_EQ(slice.values.data_ptr(),
                pair.bucket->values()[static_cast<std::int64_t>(slice.offset)].data_ptr());
    }
    pair.bucket->values().fill_(3);
    EXPECT_EQ(pair.bucket->slices()[1].values.sum().item<double>(), 9);
  });
}

TEST(GradientAlias, IsForgottenOrZeroedAsZeroGradSays) {
  in_group([](Pair& pair) {
    torch::optim::SGD optimizer(pair.aliased->parameters(), 0.1);
    const auto backward = [&] {
      pair.loss(pair.aliased).backward();
      pair.move_gradients();
    };
    const auto& first = pair.bucket->slices()[0];
    const auto data = [&] { return first.parameter.grad().data_ptr(); };
    backward();
    optimizer.zero_grad();
    EXPECT_FALSE(first.parameter.grad().defined());
    backward();
    EXPECT_EQ(data(), first.values.data_ptr());
    optimizer.zero_grad(false);
    EXPECT_EQ(data(), first.values.data_ptr());
    EXPECT_EQ(first.values.abs().sum().item<double>(), 0);
    backward();
    EXPECT_EQ(data(), first.values.data_ptr());
    EXPECT_GT(first.values.abs().sum().item<double>(), 0);
    pair.aliased->zero_grad();
    EXPECT_FALSE(first.parameter.grad().defined());
    backward();
    pair.aliased->zero_grad(false);
    // Another tensor over the same memory.
    EXPECT_FALSE(first.parameter.grad().is_same(first.values));
    EXPECT_EQ(data(), first.values.data_ptr());
  });
}

TEST(GradientAlias, AccumulatesInPlace) {
  in_group([](Pair& pair) {
    pair.loss(pair.aliased).backward();
    pair.move_gradients();
    const auto once = pair.bucket->values().clone();
    pair.loss(pair.aliased).backward();
    for (const auto& slice : pair.bucket->slices()) {
      EXPECT_TRUE(slice.parameter.grad().is_same(slice.values));
    }
    EXPECT_TRUE(torch::equal(pair.bucket->values(), once * 2));
  });
}

TEST(GradientRecord, KeepsAMeanThatOneChangeIsAPartOf) {
  using lockstep::detail::GradientState;
  const auto values = at::ones({2});
  lockstep::detail::GradientRecord record;
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
