// Models that have a parameter, a layer or a buffer under two names train as in one process. An
// optimizer that lists a parameter twice is refused, and so is a program that assigns a new tensor
// in a parameter's place after wrapping, but none that only looks like it.
#include <torch/script.h>

#include <sstream>

#include "lockstep/fused_optimizers.h"
#include "lockstep/grad_scaler.h"
#include "lockstep/model_files.h"
#include "tests/parallel/models.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

using torch::optim::AdamW;
using torch::optim::AdamWOptions;
using torch::optim::SGD;
using torch::optim::SGDOptions;

/// One layer under two names, one weight under two names, one buffer under two names.
struct Tied : torch::nn::Module {
  Tied() {
    to(at::kDouble);
    std::uint64_t seed = 1;
    for (const auto& parameter : lockstep::parameters(*this))
      parameter.detach().copy_(random(parameter.sizes(), seed++, at::kDouble) / 2);
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
  EXPECT_EQ(lockstep::parameters(scripted()).size(), 1U);
  const ModelView none(std::shared_ptr<torch::nn::Module>{});
  EXPECT_THAT(refusal([&] { lockstep::parameters(none); }), HasSubstr("got no model"));
  EXPECT_THAT(refusal([&] { state_dict(none); }), HasSubstr("got no model"));
}

SUITE_ON_RANKS(TiedRanks, 2, 3);

TEST_P_ON_RANKS(TiedRanks, GivenTwiceToAnOptimizerAreRefused) {
  const auto twice = AllOf(HasSubstr("DistributedOptimizer: got parameter "
                                     "'tied' = 'last.weight' twice, as #0 and #4 of the "
                                     "optimizer, expected each parameter once"),
                           HasSubstr("lockstep::parameters(model)"));
  for (const auto& options : all_options) {
    auto model = std::make_shared<Tied>();
    // Without the layer that has two names.
    std::vector<at::Tensor> parameters = model->parameters();
    const std::vector<at::Tensor> once = {parameters[0], parameters[1], parameters[2],
                                          model->last->bias};
    std::vector<at::Tensor> repeated = once;
    repeated.push_back(model->last->weight);
    AdamW adamw(repeated, AdamWOptions(0.1));
    EXPECT_THAT(refusal([&] { DistributedOptimizer(adamw, *model, world, options); }), twice);
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

struct Layers : torch::nn::Module {
  Layers() { set_values(*this, 3); }
  at::Tensor forward(const at::Tensor& x) { return second->forward(first->forward(x).tanh()); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(4, 4));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(4, 2));
};

at::Tensor input_of(const Group& world, int step) {
  return random({3, 4}, static_cast<std::uint64_t>(10 * step + world.rank()));
}

at::Tensor replacement() { return random({4, 4}, 99).requires_grad_(); }

/// Trains two steps, then one with a replaced parameter, which every rank must refuse, then goes
/// on.
template <class Step>
void expect_refusal(const Group& world, Layers& model, int steps_before, bool on_all,
                    const Step& step) {
  for (int i = 0; i < steps_before; ++i) step(i);
  const auto registered = model.first->weight;
  const bool is_here = on_all || world.rank() == 0;
  if (is_here) model.first->weight = replacement();
  step(steps_before);                     // the other tensor may be an input
  for (int time = 1; time < 3; ++time) {  // also when the program goes on with it
    const auto text = refusal([&] { step(steps_before + time); });
    EXPECT_THAT(text, HasSubstr("parameter first.weight rank "));
    EXPECT_THAT(text, HasSubstr(is_here ? "on this rank" : "on another rank"));
    expect_usable(world);
    model.zero_grad();
  }
  model.first->weight = registered;
  for (int i = 0; i < 2; ++i) step(i);
}

SUITE_ON_RANKS(ReplacedParameters, 1, 2, 3);

TEST_P_ON_RANKS(ReplacedParameters, AreRefusedByTheWrapper) {
  for (const int steps_before : {0, 2}) {
    for (const bool on_all : {true, false}) {
      for (const auto& options : {DataParallelOptions(), one_each}) {
        auto model = std::make_shared<Layers>();
        DistributedDataParallel ddp(model, world, options);
        expect_refusal(world, *model, steps_before, on_all, [&](int step) {
          model->zero_grad();
          ddp(input_of(world, step)).pow(2).sum().backward();
        });
      }
    }
  }
}

TEST_P_ON_RANKS(ReplacedParameters, AreRefusedByTheOptimizer) {
  for (const auto& options : {DataParallelOptions(), DataParallelOptions{.strategy = Int8()},
                              DataParallelOptions{.shard = Shard::optimizer},
                              DataParallelOptions{.shard = Shard::gradients},
                              DataParallelOptions{.share_memory = true}}) {
    for (const bool on_all : {true, false}) {
      Layers model;
      torch::optim::SGD sgd(model.parameters(), 0.1);
      DistributedOptimizer optimizer(sgd, model, world, options);
      expect_refusal(world, model, 2, on_all, [&](int step) {
        optimizer.backward_and_update(model.forward(input_of(world, step)).pow(2).sum());
      });
    }
  }
}

TEST_P_ON_RANKS(ReplacedParameters, AreRefusedUnderStrategiesThatAverageParameters) {
  for (const char* text : {"local_sgd:period=3", "adasum", "partial_update"}) {
    Layers model;
    torch::optim::SGD sgd(model.parameters(), 0.1);
    DistributedOptimizer optimizer(sgd, model, world, parse_strategy(text));
    model.first->weight = replacement();
    const auto step = [&] {
      optimizer.backward_and_update(model.forward(input_of(world, 0)).sum());
    };
    step();
    expect_refused(world, "parameter first.weight", step);
  }
}

TEST_ON_RANKS(ReplacedParameters, ByAnotherTensorInEachBackwardAreAllowed, 2) {
  Layers model;
  torch::optim::SGD sgd(model.parameters(), 0.1);
  DistributedOptimizer optimizer(sgd, model, world);
  // First-order MAML: the gradient at other values is that of the parameter.
  for (int step = 0; step < 4; ++step) {
    const auto registered = model.first->weight;
    model.first->weight = (registered.detach() + 0.1 * (1 + world.rank())).requires_grad_();
    {
      std::optional<NoSync> local;
      if (step < 2) local.emplace(optimizer.no_sync());
      model.forward(input_of(world, step)).pow(2).sum().backward();
    }
    registered.mutable_grad() = model.first->weight.grad();
    model.first->weight = registered;
    optimizer.step();
    optimizer.zero_grad();
  }
  optimizer.backward_and_update(model.forward(input_of(world, 4)).sum());  // the check
}

TEST_ON_RANKS(ReplacedParameters, AndNewOnesAreRefusedByABackwardOfTheModelItself, 2) {
  const auto model = std::make_shared<Layers>();
  auto& weight = model->first->weight;
  weight.requires_grad_(false);
  DistributedDataParallel ddp(model, world);
  const auto backward = [&] { model->forward(input_of(world, 0)).sum().backward(); };
  backward();
  weight.requires_grad_(true);
  expect_refused(world, "first.weight was frozen and now requires a gradient", backward);
  weight.requires_grad_(false);
  backward();
  model->register_parameter("third", torch::ones({3}));
  const auto* changed = "the list of parameters has changed at #";
  expect_refused(world, changed, backward);
  expect_refused(world, changed, [&] { ddp(input_of(world, 0)); });
}

/// Two layers of equal sizes, of which a step uses some.
struct Experts : torch::nn::Module {
  at::Tensor forward(std::size_t expert, const at::Tensor& x) {
    return experts[expert]->forward(x);
  }
  std::vector<torch::nn::Linear> experts{register_module("a", torch::nn::Linear(4, 4)),
                                         register_module("b", torch::nn::Linear(4, 4))};
};

TEST_ON_RANKS(UnusedParameters, BesideLeavesThatAreNotTheirsAreAllowed, 2) {
  auto model = std::make_shared<Experts>();
  auto other = std::make_shared<torch::nn::LinearImpl>(4, 4);
  DistributedDataParallel ddp(model, world);
  DistributedDataParallel wrapped(other, world);
  for (std::size_t step = 0; step < 6; ++step) {
    // An input of a parameter's sizes, and a model with a wrapper of its own.
    const auto x = random({4, 4}, step).requires_grad_();
    const auto loss = wrapped(ddp(step / 2 % 2, x)).sum();
    loss.backward({}, true);
    loss.backward();
    model->experts[1]->bias.requires_grad_(step % 2 == 0);
  }
}

/// No step of the other optimizer has hooked them.
TEST_ON_RANKS(UnusedParameters, BesideNewAccumulatorsOfAnotherWrapperAreAllowed, 2) {
  Experts model;
  torch::nn::Linear other(4, 4);
  torch::optim::SGD sgd(model.parameters(), 0.1), sgd_of_other(other->parameters(), 0.1);
  DistributedOptimizer optimizer(sgd, model, world);
  const DistributedOptimizer wrapped(sgd_of_other, *other, world);
  for (int step = 0; step < 4; ++step) {
    auto y = model.forward(0, random({3, 4}, static_cast<std::uint64_t>(step)));
    if (step == 0) y = model.forward(1, y);
    other->forward(y).sum().backward();
    optimizer.step();
    optimizer.zero_grad();
    if (step == 0) other->weight.set_data(other->weight.detach().to(at::kDouble));
    if (step == 0) other->weight.set_data(other->weight.detach().to(at::kFloat));
  }
}

}  // namespace
}  // namespace lockstep::testing
