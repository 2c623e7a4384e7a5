// A program that assigns a new tensor in a parameter's place after wrapping, and programs that only
// look like it.
#include "tests/matchers.h"
#include "tests/parallel/models.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

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
  expect_refused(world, "the list of parameters has changed at #", backward);
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
