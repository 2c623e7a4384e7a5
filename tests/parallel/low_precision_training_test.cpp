// Parameters of bfloat16 whose optimizer state is divided among the ranks: the bits of one process.
#include "tests/parallel/trainings.h"
#include "tests/refusal.h"

namespace lockstep::testing::low_precision {
namespace {

using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

constexpr LowPrecision modes[] = {LowPrecision::master, LowPrecision::stochastic,
                                  LowPrecision::kahan};

/// Parameters of bfloat16, one of them in channels-last strides and one without elements, and one
/// of float32. Every rank has the same batch, so the mean of the gradients is that of one process.
struct Layers : torch::nn::Module {
  Layers() {
    mlp = register_module("mlp", std::make_shared<Mlp>(std::vector<std::int64_t>{7, 61, 33, 3}));
    convolution = register_module("convolution", torch::nn::Conv2d(2, 3, 3));
    empty = register_parameter("empty", at::zeros({0}));
    to(at::kBFloat16);
    convolution->weight.set_data(convolution->weight.contiguous(at::MemoryFormat::ChannelsLast));
    scale = register_parameter("scale", at::ones({5}));
    set_values(*this, 1);
  }

  at::Tensor loss(int step) {
    const auto seed = static_cast<std::uint64_t>(100 * step);
    const auto in_bf16 = [&](at::IntArrayRef sizes, std::uint64_t of) {
      return random(sizes, seed + of).to(at::kBFloat16);
    };
    auto sum = mlp->forward(in_bf16({4, 7}, 0)).pow(2).mean().to(at::kFloat);
    sum = sum + convolution->forward(in_bf16({1, 2, 5, 5}, 10)).pow(2).mean().to(at::kFloat);
    return sum + empty.sum().to(at::kFloat) + scale.sum();
  }

  std::shared_ptr<Mlp> mlp;
  torch::nn::Conv2d convolution = nullptr;
  at::Tensor empty, scale;
};

using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(Layers&, LowPrecision)>;

struct Case {
  const char* optimizer;
  Shard shard;
  Make make;
};
const std::vector<Case> cases{
    {"FusedSgd", Shard::optimizer,
     [](Layers& model, LowPrecision mode) {
       return std::make_unique<FusedSgd>(model.parameters(), SGDOptions(0.05), mode);
     }},
    {"FusedAdamW", Shard::gradients, [](Layers& model, LowPrecision mode) {
       return std::make_unique<FusedAdamW>(model.parameters(), AdamWOptions(0.01).amsgrad(true),
                                           mode);
     }}};

SUITE_ON_RANKS(LowPrecisionTraining, 1, 2, 3, 4, 7);

TEST_P_ON_RANKS(LowPrecisionTraining, HasTheBitsOfOneProcessAlsoInParts) {
  const TemporaryFolder folder;
  for (const auto mode : modes) {
    for (const auto& [kind, shard, make] : cases) {
      SCOPED_TRACE(std::string(name(mode)) + ' ' + kind);
      Layers alone;
      const auto reference = make(alone, mode);
      const auto step_alone = [&](int step) {
        reference->zero_grad();
        alone.loss(step).backward();
        reference->step();
      };
      Layers model;
      auto base = make(model, mode);
      DistributedOptimizer optimizer(*base, model, world, {.shard = shard});
      for (int step = 0; step < 3; ++step) {
        step_alone(step);
        optimizer.backward_and_update(model.loss(step));
      }
      expect_equal_models(model, alone);
      const auto path = folder / "parts";
      EXPECT_TRUE(file_of(model, *base, world, path) ==
                  file_of(alone, *reference, world, folder / "whole"));

      Layers resumed;
      const auto loaded = make(resumed, mode);
      DistributedOptimizer after(*loaded, resumed, world, {.shard = shard});
      after.backward_and_update(resumed.loss(9));  // it remembers something else
      Checkpoint{.model = resumed, .optimizer = *loaded}.load(path, world);
      for (int step = 3; step < 5; ++step) {
        step_alone(step);
        after.backward_and_update(resumed.loss(step));
      }
      expect_equal_models(resumed, alone);
      EXPECT_TRUE(file_of(resumed, *loaded, world, path) ==
                  file_of(alone, *reference, world, folder / "whole"));
    }
  }
}

TEST_ON_RANKS(LowPrecisionSharing, IsRefusedWithTheRemedy, 2) {
  Layers model;
  FusedSgd sgd(model.parameters(), SGDOptions(0.1), LowPrecision::kahan);
  const auto* const text =
      "share_memory: got an optimizer with LowPrecision::kahan, expected LowPrecision::nearest: "
      "use shard";
  expect_refused(world, text, [&] {
    const DistributedOptimizer optimizer(sgd, model, world, {.share_memory = true});
  });
}

}  // namespace
}  // namespace lockstep::testing::low_precision
