// Models that have a parameter, a layer or a buffer under two names train as in one process. An
// optimizer that lists a parameter twice is refused.
#include <torch/script.h>

#include <sstream>

#include "lockstep/fused_optimizers.h"
#include "lockstep/grad_scaler.h"
#include "tests/matchers.h"
#include "tests/parallel/models.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

using torch::optim::AdamW;
using torch::optim::AdamWOptions;
using torch::optim::SGD;
using torch::optim::SGDOptions;

constexpr int tied_steps = 4;

/// One layer under two names, one weight under two names, one buffer under two names.
struct Tied : torch::nn::Module {
  Tied() {
    to(at::kDouble);
    const torch::NoGradGuard no_grad;
    std::uint64_t seed = 1;
    for (auto& parameter : lockstep::parameters(*this))
      parameter.copy_(random(parameter.sizes(), seed++, at::kDouble) / 2);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto hidden = layer->forward(torch::tanh(layer->forward(x * scale)));
    return torch::tanh(hidden).mm(last->weight) + last->bias;
  }
  static at::Tensor batch(int step, int rows) {
    return random({rows, 4}, static_cast<std::uint64_t>(100 + step), at::kDouble);
  }

  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(4, 4));
  torch::nn::Linear again = register_module("again", layer);
  torch::nn::Linear last = register_module("last", torch::nn::Linear(4, 4));
  at::Tensor scale = register_buffer("scale", at::full({4}, 1.5, at::kDouble));
  at::Tensor same_scale = register_buffer("same_scale", scale);
  at::Tensor tied = register_parameter("tied", last->weight);
};

const std::vector<DataParallelOptions> all_options{{},
                                                   {.shard = Shard::optimizer},
                                                   {.shard = Shard::gradients},
                                                   {.share_memory = true},
                                                   {.optimized_only = true}};

TEST(TiedParameters, AreListedOnce) {
  Tied model;
  EXPECT_EQ(model.parameters().size(), 7U);
  const auto parameters = lockstep::parameters(model);
  ASSERT_EQ(parameters.size(), 4U);
  // In order of registration: LibTorch lists a module's own parameters first.
  EXPECT_TRUE(parameters[0].is_same(model.tied));
  EXPECT_TRUE(parameters[1].is_same(model.layer->weight));
  EXPECT_TRUE(parameters[3].is_same(model.last->bias));
  const auto w = at::ones({2}).requires_grad_();
  EXPECT_EQ(lockstep::parameters(ModelView({{"w", w}, {"v", w}})).size(), 1U);
  EXPECT_THAT(
      refusal([] { lockstep::parameters(ModelView(std::shared_ptr<torch::nn::Module>())); }),
      HasSubstr("parameters: got no model"));
}

SUITE_ON_RANKS(TiedRanks, 2, 3);

TEST_P_ON_RANKS(TiedRanks, HaveTheBitsOfAListWithoutSecondNames) {
  for (const char* strategy : {"fp16", "bf16", "int8", "topk:0.3", "threshold:0.01", "power_sgd",
                               "local_sgd:2", "partial_update", "adasum"}) {
    const auto train = [&](Tied& model, const ModelView& view) {
      SGD sgd(lockstep::parameters(view), SGDOptions(0.05).momentum(0.9));
      DistributedOptimizer optimizer(sgd, view, world, parse_strategy(strategy));
      for (int step = 0; step < tied_steps; ++step) {
        const auto x = Tied::batch(step, 2 * world.size()).narrow(0, 2 * world.rank(), 2);
        optimizer.backward_and_update(model.forward(x.to(at::kFloat)).pow(2).mean());
      }
      optimizer.synchronize();
    };
    Tied tied, listed;
    for (auto* model : {&tied, &listed}) model->to(at::kFloat);
    train(tied, tied);
    train(listed, ModelView({{"tied", listed.tied},
                             {"layer.weight", listed.layer->weight},
                             {"layer.bias", listed.layer->bias},
                             {"last.bias", listed.last->bias}},
                            {{"scale", listed.scale}}));
    const auto got = lockstep::parameters(tied), expected = lockstep::parameters(listed);
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(at::equal(got[i], expected[i])) << strategy << ", parameter " << i;
  }
}

TEST_P_ON_RANKS(TiedRanks, GivenTwiceToAnOptimizerAreRefused) {
  const auto twice = AllOf(HasSubstr("DistributedOptimizer: got parameter "
                                     "'tied' = 'last.weight' twice, as #0 and #5 of the "
                                     "optimizer, expected each parameter once"),
                           HasSubstr("lockstep::parameters(model)"));
  for (const auto& options : all_options) {
    auto model = std::make_shared<Tied>();
    // Without the layer that has two names.
    std::vector<at::Tensor> parameters = model->parameters();
    const std::vector<at::Tensor> once = {parameters[0], parameters[1], parameters[2],
                                          model->last->bias};
    std::vector<at::Tensor> repeated = once;
    repeated.insert(repeated.begin() + 3, {at::ones({1}).requires_grad_()});
    repeated.push_back(model->last->weight);
    ModelView view({{"tied", model->tied},
                    {"last.weight", model->tied},
                    {"layer.weight", model->layer->weight},
                    {"layer.bias", model->layer->bias},
                    {"other", repeated[3]},
                    {"last.bias", model->last->bias}});
    AdamW adamw(repeated, AdamWOptions(0.1));
    EXPECT_THAT(refusal([&] { DistributedOptimizer(adamw, view, world, options); }), twice);
    expect_usable(world);
    // In another group, and on one rank only.
    AdamW groups({{once}, {{model->last->weight}}}, AdamWOptions(0.1));
    AdamW plain(once, AdamWOptions(0.1));
    auto& own = world.rank() == 1 ? groups : plain;
    expect_refused(world, "'tied' = 'last.weight' twice, as #0 and #4 of the optimizer",
                   [&] { DistributedOptimizer(own, *model, world, options); });
    if (options.optimized_only) continue;
    DistributedDataParallel ddp(model, world, options);
    expect_refused(world, "'tied' = 'last.weight' twice", [&] { DistributedOptimizer(own, ddp); });
  }
}

TEST(TiedParameters, GivenTwiceToAFusedOptimizerAreRefused) {
  const Tied model;
  const auto refused = HasSubstr(
      "FusedOptimizer: got a parameter of sizes [4, 4] twice, as #0 and #6 of the optimizer");
  const std::vector<at::Tensor> once = lockstep::parameters(model);
  std::vector<at::Tensor> twice = once;
  twice.insert(twice.end(), {at::ones({1}), at::ones({1}), model.last->weight});
  EXPECT_THAT(refusal([&] { FusedSgd(twice, SGDOptions(0.1)); }), refused);
  EXPECT_THAT(refusal([&] { FusedAdam sgd(twice); }), refused);
  EXPECT_THAT(refusal([&] { FusedAdamW(twice, AdamWOptions(0.1), LowPrecision::master); }),
              refused);
  EXPECT_THAT(refusal([&] {
                FusedSgd({{once}, {{once[2]}}}, SGDOptions(0.1));
              }),
              HasSubstr("twice, as #2 and #4"));
  // Added after construction: nothing is updated.
  FusedSgd later(once, SGDOptions(0.1));
  torch::optim::Optimizer& base = later;
  base.add_param_group({std::vector<at::Tensor>{once[1]}});
  for (auto parameter : once) parameter.mutable_grad() = at::ones_like(parameter);
  const auto before = once[0].detach().clone();
  EXPECT_THAT(refusal([&] { later.step(); }), HasSubstr("twice, as #1 and #4"));
  EXPECT_TRUE(at::equal(once[0], before));
}

TEST_ON_RANKS(TiedParameters, GivenTwiceToAGradScalerAreRefused, 2) {
  Tied model;
  SGD sgd(model.parameters(), SGDOptions(0.1));
  GradScaler scaler(world);
  scaler.scale(model.forward(Tied::batch(0, 2)).sum()).backward();
  const auto before = model.tied.grad().clone();
  expect_refused(world, "GradScaler::unscale_: got", [&] { scaler.step(sgd); });
  EXPECT_TRUE(at::equal(model.tied.grad(), before));
}

/// A scripted module with one submodule under two names, saved and loaded.
torch::jit::Module scripted() {
  torch::jit::Module block("Block");
  block.register_parameter("w", (random({4, 4}, 7, at::kDouble) / 2).requires_grad_(), false);
  block.define("def forward(self, x):\n  return torch.tanh(torch.mm(x, self.w))\n");
  torch::jit::Module model("Model");
  model.register_module("first", block);
  model.register_module("second", block);
  model.define("def forward(self, x):\n  return self.second.forward(self.first.forward(x))\n");
  std::stringstream file;
  model.save(file);
  return torch::jit::load(file);
}

TEST_P_ON_RANKS(TiedRanks, OfAScriptedModuleGivenTwiceAreRefused) {
  auto model = scripted();
  EXPECT_EQ(lockstep::parameters(model).size(), 1U);
  std::vector<at::Tensor> all;
  for (const auto& parameter : model.parameters()) all.push_back(parameter);
  SGD sgd(all, SGDOptions(0.1));
  expect_refused(world, "got parameter 'first.w' = 'second.w' twice, as #0 and #1",
                 [&] { DistributedOptimizer(sgd, model, world); });
}

}  // namespace
}  // namespace lockstep::testing
