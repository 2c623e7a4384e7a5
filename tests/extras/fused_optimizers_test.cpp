#include "lockstep/fused_optimizers.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "tests/train/training.h"

// The optimizers of LibTorch are what they must equal but for rounding.

namespace lockstep::testing {
namespace {

using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

std::vector<at::Tensor> parameters() {
  std::vector<at::Tensor> all{at::ones({5, 7}), at::ones({3}, at::kDouble), at::ones({0}),
                              at::ones({4, 6, 2}).permute({2, 0, 1}), at::ones({1001})};
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].mul_(0.5 + static_cast<double>(i)).set_requires_grad(true);
  }
  return all;
}

/// Gradients in the parameters' strides; at every third step one parameter has none.
void set_gradients(const std::vector<at::Tensor>& all, int step) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto& gradient = all[i].mutable_grad();
    gradient = at::Tensor();
    if ((static_cast<int>(i) + step) % 3 == 0) continue;
    const auto places = at::arange(all[i].numel(), at::kDouble);
    gradient = at::empty_like(all[i]);
    gradient.copy_(at::sin(places * 0.7 + step).view(all[i].sizes()));
  }
}

void expect_near(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(got[i].detach().allclose(expected[i].detach(), 1e-5, 1e-6)) << i;
  }
}

/// 100 steps with a change of the learning rate in between.
template <class Fused, class Base, class Options>
void expect_steps_as_base(const Options& options) {
  const auto fused = parameters();
  const auto plain = parameters();
  Fused ours(fused, options);
  Base theirs(plain, options);
  for (int step = 0; step < 100; ++step) {
    set_gradients(fused, step);
    set_gradients(plain, step);
    if (step == 50) {
      ours.param_groups()[0].options().set_lr(0.002);
      theirs.param_groups()[0].options().set_lr(0.002);
    }
    ours.step();
    theirs.step();
    expect_near(fused, plain);
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_EQ(ours.state().size(), theirs.state().size());
}

TEST(FusedOptimizers, StepAsTheirBasesDo) {
  for (const auto& options :
       {SGDOptions(0.1), SGDOptions(0.1).weight_decay(0.01), SGDOptions(0.1).momentum(0.9),
        SGDOptions(0.1).momentum(0.9).dampening(0.3).weight_decay(0.1),
        SGDOptions(0.1).momentum(0.8).nesterov(true)}) {
    expect_steps_as_base<FusedSgd, torch::optim::SGD>(options);
  }
  for (const auto& options :
       {AdamOptions(0.01), AdamOptions(0.01).weight_decay(0.1), AdamOptions(0.01).amsgrad(true),
        AdamOptions(0.01).betas({0.5, 0.9}).eps(1e-3)}) {
    expect_steps_as_base<FusedAdam, torch::optim::Adam>(options);
  }
  for (const auto& options : {AdamWOptions(0.01), AdamWOptions(0.01).weight_decay(0.3),
                              AdamWOptions(0.01).amsgrad(true).weight_decay(0)}) {
    expect_steps_as_base<FusedAdamW, torch::optim::AdamW>(options);
  }
}

TEST(FusedSgd, UpdatesEveryElementOfLowPrecision) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    for (const auto& options :
         {SGDOptions(0.1), SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.1)}) {
      const auto start = at::linspace(1, 2, 1001).view({77, 13}).t();
      const auto ours = start.to(dtype).set_requires_grad(true);
      const auto theirs = start.clone().set_requires_grad(true);
      FusedSgd fused(std::vector<at::Tensor>{ours}, options);
      torch::optim::SGD plain(std::vector<at::Tensor>{theirs}, options);
      for (int step = 0; step < 3; ++step) {
        const auto gradient = at::sin(start * 20 + step).to(dtype);
        ours.mutable_grad() = gradient;
        theirs.mutable_grad() = gradient.to(at::kFloat);
        fused.step();
        plain.step();
      }
      EXPECT_TRUE(ours.detach().to(at::kFloat).allclose(theirs.detach(), 0.02, 0.02)) << dtype;
    }
  }
}

/// Parameters with holes, and gradients in other strides.
template <class Fused, class Base, class Options>
void expect_what_the_kernel_cannot(const Options& options) {
  const auto with_holes = [] {
    return std::vector<at::Tensor>{at::ones({4, 6}).slice(1, 0, 6, 2).set_requires_grad(true),
                                   at::ones({3, 5}).set_requires_grad(true)};
  };
  const auto fused = with_holes();
  const auto plain = with_holes();
  Fused ours(fused, options);
  Base theirs(plain, options);
  // As a wrapper that shares updates does: entries without tensors are no state.
  for (const auto& parameter : fused) ours.state_of(parameter);
  for (int step = 0; step < 3; ++step) {
    for (const auto* all : {&fused, &plain}) {
      (*all)[0].mutable_grad() = at::full({4, 3}, 0.5 * step);
      (*all)[1].mutable_grad() = at::full({5, 3}, 0.25 * step).t();
    }
    ours.step();
    theirs.step();
    expect_near(fused, plain);
  }
}

TEST(FusedOptimizers, TakeWhatTheKernelCannot) {
  expect_what_the_kernel_cannot<FusedSgd, torch::optim::SGD>(SGDOptions(0.1).momentum(0.9));
  expect_what_the_kernel_cannot<FusedAdam, torch::optim::Adam>(AdamOptions(0.1));
}

TEST(FusedSgd, CallsItsClosureWithGradients) {
  auto x = at::ones({3}).set_requires_grad(true);
  FusedSgd sgd({x}, 0.1);
  const auto loss = sgd.step([&] {
    sgd.zero_grad();
    auto sum = (x * x).sum();
    sum.backward();
    return sum;
  });
  EXPECT_EQ(loss.item<float>(), 3);
  EXPECT_TRUE(x.detach().allclose(at::full({3}, 0.8f)));
}

/// A checkpoint of each is one of the other, and both go on equally.
template <class Fused, class Base, class Options>
void expect_shared_checkpoints(const Options& options) {
  const TemporaryFolder folder;
  const auto train = [](Net& model, torch::optim::Optimizer& optimizer) {
    optimizer.zero_grad();
    model.forward(at::ones({2, 4})).square().sum().backward();
    optimizer.step();
  };
  Net model;
  Fused ours(model.parameters(), options);
  train(model, ours);
  save_checkpoint(folder / "c", model, ours, {.epoch = 1});
  Net other;
  Base theirs(other.parameters(), options);
  EXPECT_EQ(load_checkpoint(folder / "c", other, theirs).epoch, 1);
  train(other, theirs);
  save_checkpoint(folder / "d", other, theirs, {.epoch = 2});
  train(model, ours);
  expect_near(model.parameters(), other.parameters());
  EXPECT_EQ(load_checkpoint(folder / "d", model, ours).epoch, 2);
  EXPECT_EQ(ours.state().size(), theirs.state().size());
  train(model, ours);
  train(other, theirs);
  expect_near(model.parameters(), other.parameters());
}

TEST(FusedOptimizers, ShareCheckpointsWithTheirBases) {
  expect_shared_checkpoints<FusedSgd, torch::optim::SGD>(SGDOptions(0.1).momentum(0.9));
  expect_shared_checkpoints<FusedAdam, torch::optim::Adam>(AdamOptions(0.1).amsgrad(true));
  expect_shared_checkpoints<FusedAdamW, torch::optim::AdamW>(AdamWOptions(0.1));
}

}  // namespace
}  // namespace lockstep::testing
