#include "lockstep/fused_sgd.h"

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <vector>

#include "lockstep/checkpoint.h"
#include "tests/temporary_folder.h"
#include "tests/train/training.h"

// torch::optim::SGD is what it must equal but for rounding.

namespace lockstep {
namespace {

using testing::TemporaryFolder;
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

TEST(FusedSgd, StepsAsSgdDoes) {
  for (const auto& options :
       {SGDOptions(0.1), SGDOptions(0.1).weight_decay(0.01), SGDOptions(0.1).momentum(0.9),
        SGDOptions(0.1).momentum(0.9).dampening(0.3).weight_decay(0.1),
        SGDOptions(0.1).momentum(0.8).nesterov(true)}) {
    const auto fused = parameters();
    const auto plain = parameters();
    FusedSgd ours(fused, options);
    torch::optim::SGD theirs(plain, options);
    for (int step = 0; step < 8; ++step) {
      set_gradients(fused, step);
      set_gradients(plain, step);
      if (step == 5) {
        ours.param_groups()[0].options().set_lr(0.02);
        theirs.param_groups()[0].options().set_lr(0.02);
      }
      ours.step();
      theirs.step();
      expect_near(fused, plain);
    }
    EXPECT_EQ(ours.state().size(), theirs.state().size());
  }
}

TEST(FusedSgd, TakesWhatTheKernelCannot) {
  const auto with_holes = [] {
    return std::vector<at::Tensor>{at::ones({4, 6}).slice(1, 0, 6, 2).set_requires_grad(true),
                                   at::ones({3, 5}).set_requires_grad(true)};
  };
  const auto fused = with_holes();
  const auto plain = with_holes();
  FusedSgd ours(fused, SGDOptions(0.1).momentum(0.9));
  torch::optim::SGD theirs(plain, SGDOptions(0.1).momentum(0.9));
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

TEST(FusedSgd, SharesCheckpointsWithSgd) {
  const TemporaryFolder folder;
  testing::Net model;
  FusedSgd ours(model.parameters(), SGDOptions(0.1).momentum(0.9));
  model.forward(at::ones({2, 4})).square().sum().backward();
  ours.step();
  save_checkpoint(folder / "c", model, ours, {.epoch = 1});
  testing::Net other;
  torch::optim::SGD theirs(other.parameters(), SGDOptions(0.1).momentum(0.9));
  EXPECT_EQ(load_checkpoint(folder / "c", other, theirs).epoch, 1);
  save_checkpoint(folder / "d", other, theirs, {.epoch = 2});
  EXPECT_EQ(load_checkpoint(folder / "d", model, ours).epoch, 2);
  EXPECT_EQ(ours.state().size(), theirs.state().size());
}

}  // namespace
}  // namespace lockstep
