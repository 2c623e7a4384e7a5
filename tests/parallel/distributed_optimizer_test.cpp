// DistributedOptimizer: the same gradients as DistributedDataParallel, and parameters in turns.
// Over a DistributedDataParallel: the steps of a DistributedOptimizer alone.
#include "tests/parallel/models.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

using torch::optim::AdamWOptions;
using torch::optim::SGD;
using torch::optim::SGDOptions;

TEST_ON_RANKS(OptimizerOfParameters, RefusesOneThatIsAddedAndNotWrapped, 2) {
  for (const bool optimized_only : {false, true}) {
    Mlp model;
    SGD sgd(model.layers[0]->parameters(), SGDOptions(0.1));
    DistributedOptimizer optimizer(sgd, model, world, {.optimized_only = optimized_only});
    const auto x = torch::ones({1, 7}).to(own_device());
    const auto loss = [&] { return model.forward(x).sum(); };
    optimizer.backward_and_update(loss());
    sgd.add_param_group(torch::optim::OptimizerParamGroup(model.layers[1]->parameters()));
    if (!optimized_only) {
      optimizer.backward_and_update(loss());  // the wrapper averages their gradients
      sgd.add_param_group(
          torch::optim::OptimizerParamGroup({torch::ones({3}).to(own_device()).requires_grad_()}));
    }
    const auto* const text =
        "was added after the construction, and the model that was wrapped lacks it";
    expect_refused(world, text, [&] { optimizer.backward_and_update(loss()); });
  }
}

TEST_ON_RANKS(OptimizerOfParameters, CopiesAndComparesAlsoTheOthers, 3) {
  Mlp model;
  const auto& other = model.layers[1]->weight;
  for (auto& parameter : model.layers[1]->parameters()) {
    parameter.requires_grad_(false);
    parameter.fill_(world.rank() + 1);
  }
  SGD sgd(model.layers[0]->parameters(), SGDOptions(0.1));
  const DataParallelOptions options{.optimized_only = true};
  {
    const DistributedOptimizer optimizer(sgd, model, world, options);
    EXPECT_EQ(other.sum().item<double>(), other.numel());
  }
  auto fewer = model.layers[0]->parameters();
  if (world.rank() == 1) fewer.pop_back();
  SGD differing(fewer, SGDOptions(0.1));
  expect_refused(world, "layer0.bias",
                 [&] { DistributedOptimizer(differing, model, world, options); });
  if (world.rank() == 1) other.set_data(torch::ones({9}).to(own_device()));
  expect_refused(world, "layer1.weight", [&] { DistributedOptimizer(sgd, model, world, options); });
}

// Autograd gives a parameter without dimensions a gradient that is a negated view.
TEST_ON_RANKS(OptimizerOfParameters, TakesANegatedViewAsAGradient, 2) {
  for (auto options : every_update) {
    options.buckets = one_each.buckets;
    torch::nn::Module model;
    const auto a = model.register_parameter("a", torch::zeros({}).to(own_device()));
    const auto b = model.register_parameter("b", torch::zeros({}).to(own_device()));
    SGD sgd(model.parameters(), SGDOptions(1));
    DistributedOptimizer optimizer(sgd, model, world, options);
    const auto z = torch::complex(torch::tensor(2.0F), torch::tensor(3.0F)).to(own_device());
    optimizer.backward_and_update(torch::real(z * torch::complex(a, b).conj()));
    EXPECT_EQ(a.item<float>(), -2);  // the real part of (2 + 3i)·(a − bi) is 2a + 3b
    EXPECT_EQ(b.item<float>(), -3);
    world.barrier().wait();
  }
}

// A hook may return one.
TEST_ON_RANKS(OptimizerOfParameters, TakesAZeroWithoutMemoryAsAGradient, 2) {
  if (!own_device().is_cpu()) return;
  for (auto options : every_update) {
    options.buckets = one_each.buckets;
    torch::nn::Module model;
    const auto a = model.register_parameter("a", torch::ones({3}));
    const auto b = model.register_parameter("b", torch::ones({3}));
    a.register_hook([](const at::Tensor&) { return torch::_efficientzerotensor({3}); });
    SGD sgd(model.parameters(), SGDOptions(1));
    DistributedOptimizer optimizer(sgd, model, world, options);
    optimizer.backward_and_update((a + b).sum());
    EXPECT_TRUE(torch::equal(a, torch::ones({3})));
    EXPECT_TRUE(torch::equal(b, torch::zeros({3})));
    optimizer.zero_grad();
    a.mutable_grad() = torch::_efficientzerotensor({3});
    b.mutable_grad() = torch::ones({3})._neg_view();
    optimizer.step();
    EXPECT_TRUE(torch::equal(a, torch::ones({3})));
    EXPECT_TRUE(torch::equal(b, torch::ones({3})));
    world.barrier().wait();
  }
}

TEST_ON_RANKS(OptimizerOfParameters, ComparesAZeroWithoutMemoryWithAMean, 2) {
  if (!own_device().is_cpu()) return;
  OptimizedTerms run(world, {.strategy = parse_strategy("topk:0.5")}, {{3}, {3}});
  if (world.rank() == 0) {
    run.model.p[0].register_hook(
        [](const at::Tensor&) { return torch::_efficientzerotensor({3}); });
  }
  for (int step = 0; step < 3; ++step) {
    run.optimizer.zero_grad();
    run.loss().backward();
    run.optimizer.step();
  }
  world.barrier().wait();
}

SUITE_ON_RANKS(Optimizer, 1, 2, 3, 4, 7);

/// LBFGS evaluates the loss several times a step and chooses the length of the step by the losses.
TEST_P_ON_RANKS(Optimizer, TakesTheStepsOfLbfgsAsOneProcessDoes) {
  // Rank r has r samples, so rank 0 has none unless it is alone.
  const int ranks = world.size(), rank = world.rank();
  const int own = ranks == 1 ? 4 : rank, before = rank * (rank - 1) / 2;
  const int total = ranks == 1 ? 4 : ranks * (ranks - 1) / 2;
  const auto x = Mlp::batch(total + 20, 3).narrow(0, 0, total);
  const auto make = [] {
    auto model = std::make_shared<Mlp>(std::vector<std::int64_t>{7, 3});
    model->to(at::kDouble);
    set_values(*model, 7);
    return model;
  };
  const auto loss_of = [](Mlp& model, const at::Tensor& input) {
    return (model.forward(input) - input.narrow(1, 0, 3).sin()).pow(2).mean() +
           0.1 * model.layers[0]->weight.pow(2).sum();
  };
  const auto options = torch::optim::LBFGSOptions(0.5).max_iter(5).line_search_fn("strong_wolfe");
  const auto model = make(), whole = make();
  torch::optim::LBFGS lbfgs(model->parameters(), options), expected(whole->parameters(), options);
  DistributedOptimizer optimizer(lbfgs, *model, world);
  int evaluations = 0;
  for (int step = 0; step < 3; ++step) {
    const auto loss = optimizer.step([&] {
      ++evaluations;
      optimizer.zero_grad();
      optimizer.weight(own);
      if (own == 0) return at::Tensor();
      auto result = loss_of(*model, x.narrow(0, before, own));
      result.backward();
      return result;
    });
    const auto whole_loss = expected.step([&] {
      expected.zero_grad();
      auto result = loss_of(*whole, x);
      result.backward();
      return result;
    });
    EXPECT_NEAR(loss.item<double>(), whole_loss.item<double>(), 1e-9);
    EXPECT_TRUE(same_on_all_ranks(loss.reshape({1}).to(own_device()), world));
  }
  EXPECT_GT(evaluations, 6);
  expect_near_models(*model, *whole, 1e-8);
  for (std::size_t i = 0; i < whole->parameters().size(); ++i) {
    EXPECT_GT(distance(make()->parameters()[i], whole->parameters()[i]), 1e-2);
    EXPECT_TRUE(same_on_all_ranks(model->parameters()[i], world));
  }
  // Another optimizer, and an ordinary step after it.
  SGD sgd(whole->parameters(), SGDOptions(0.1));
  DistributedOptimizer once(sgd, *whole, world);
  const auto mean_loss = once.step([&] {
    whole->forward(x).sum().backward();
    return at::full({}, rank);
  });
  EXPECT_EQ(mean_loss.item<double>(), (ranks - 1) / 2.0);
  once.zero_grad();
  once.backward_and_update(whole->forward(x).sum());
  EXPECT_TRUE(same_on_all_ranks(whole->parameters()[0], world));
}

TEST_ON_RANKS(OptimizerClosure, IsRefusedOnEveryRank, 2) {
  Terms model(two_shapes);
  SGD sgd(model.parameters(), SGDOptions(1));
  const auto refused = [&](DistributedOptimizer& optimizer, const at::Tensor& loss) {
    return refusal([&] { optimizer.step([&] { return loss; }); });
  };
  {
    DistributedOptimizer optimizer(sgd, model, world, parse_strategy("local_sgd:period=2"));
    EXPECT_THAT(refused(optimizer, at::ones({})), HasSubstr("step(closure): got a strategy that"));
  }
  DistributedOptimizer optimizer(sgd, model, world);
  EXPECT_THAT(refused(optimizer, at::ones({world.rank() + 1})),
              HasSubstr(world.rank() == 0 ? "a loss of several elements on another rank"
                                          : "a loss of 2 elements on this rank"));
  EXPECT_EQ(refused(optimizer, at::ones({})), "");
}

TEST_ON_RANKS(LossWithoutAGraph, IsRefusedIfNoRankHasAnotherAndNothingIsToUpdate, 3) {
  for (const auto& how : every_update) {
    if (how.share_memory == true) continue;
    OptimizedTerms run(world, how);
    const auto none = run.loss().detach();
    const bool is_first = world.rank() == 0;
    for (const auto& loss : {none, is_first ? none : at::Tensor()}) {
      expect_refused(world, "backward_and_update(): got no loss that requires a gradient",
                     [&] { run.optimizer.backward_and_update(loss); });
    }
    run.optimizer.backward_and_update({});
    run.optimizer.backward_and_update(is_first ? none : run.loss());
    // Without a parameter, as of a model that is frozen.
    run.optimizer.backward_and_update(is_first ? at::ones({}).requires_grad_() : none);
    run.accumulate();
    run.optimizer.backward_and_update(none);
    run.loss().backward();
    run.optimizer.backward_and_update(none);
    const auto before = copies_of(run.model.p);
    run.model.p[0].mutable_grad() = at::ones_like(run.model.p[0]);
    run.optimizer.backward_and_update(none);
    EXPECT_FALSE(before[0].equal(run.model.p[0]));
  }
}

TEST_ON_RANKS(OptimizerStart, RefusesParametersOfAnotherModelOnEveryRank, 3) {
  Terms model(some_shapes), other(some_shapes);
  auto parameters = model.parameters();
  if (world.rank() == 1) parameters.push_back(other.p[1]);
  SGD sgd(parameters, SGDOptions(1));
  expect_refused(world, "parameter #4 of the optimizer, of sizes [2, 5]",
                 [&] { DistributedOptimizer optimizer(sgd, model, world); });
}

/// Two layers, of which a forward uses the first, both, or none, and a buffer.
struct Net : torch::nn::Module {
  Net() {
    set_values(*this, 1);
    norm->track();
  }
  at::Tensor forward(const at::Tensor& x, int layers) {
    if (layers == 0) return x * 2;
    const auto y = norm->forward(first->forward(x)).tanh();
    return layers > 1 ? second->forward(y) : y;
  }
  struct Shift : torch::nn::Module {
    void track() { mean = register_buffer("mean", at::zeros({5})); }
    at::Tensor forward(const at::Tensor& x) {
      mean.mul_(0.9).add_(x.detach().mean(0), 0.1);
      return x - mean;
    }
    at::Tensor mean;
  };
  torch::nn::Linear first = register_module("first", torch::nn::Linear(7, 5));
  std::shared_ptr<Shift> norm = register_module("norm", std::make_shared<Shift>());
  torch::nn::Linear second = register_module("second", torch::nn::Linear(5, 5));
};

SUITE_ON_RANKS(WrappedModelSteps, 1, 2, 3, 4);

TEST_P_ON_RANKS(WrappedModelSteps, AreThoseOfADistributedOptimizerAlone) {
  for (const auto& how : every_update) {
    SCOPED_TRACE(static_cast<int>(&how - every_update));
    const auto wrapped = std::make_shared<Net>(), plain = std::make_shared<Net>();
    torch::optim::AdamW adamw(wrapped->parameters(), AdamWOptions(0.01));
    torch::optim::AdamW of_plain(plain->parameters(), AdamWOptions(0.01));
    std::optional<DistributedDataParallel<Net>> ddp(std::in_place, wrapped, world, how);
    DistributedOptimizer optimizer(adamw, *ddp), alone(of_plain, *plain, world, how);
    for (int step = 0; step < 8; ++step) {
      const auto x = random({4, 7}, static_cast<std::uint64_t>(100 * step + world.rank()));
      const int layers = (step + world.rank()) % 3 != 0 ? 2 : 1;
      const auto loss = (*ddp)(x, layers).square().mean();
      const auto of_alone = plain->forward(x, layers).square().mean();
      if (step % 2 == 0) {
        optimizer.backward_and_update(loss);
        alone.backward_and_update(of_alone);
      } else {
        loss.backward();
        of_alone.backward();
        EXPECT_EQ(clip_grad_norm(optimizer, 0.1), clip_grad_norm(alone, 0.1));
        optimizer.step();
        alone.step();
        optimizer.zero_grad();
        alone.zero_grad();
      }
      EXPECT_TRUE(torch::equal(wrapped->norm->mean, plain->norm->mean));
      expect_equal_replicas(world, *wrapped, *plain);
    }
    ddp.reset();  // the steps go on without the wrapper
    optimizer.backward_and_update(wrapped->forward(at::ones({1, 7}), 2).sum());
    alone.backward_and_update(plain->forward(at::ones({1, 7}), 2).sum());
    expect_equal_replicas(world, *wrapped, *plain);
  }
}

TEST_ON_RANKS(WrappedModel, NeedsADistributedOptimizerForOptionsThatDivideTheUpdate, 2) {
  for (const auto& how : every_update) {
    if (!divides_update(how)) continue;
    const auto model = std::make_shared<Net>();
    DistributedDataParallel ddp(model, world, how);
    const auto x = at::ones({1, 7});
    const auto* const option = how.share_memory == true ? "share_memory" : "shard";
    const auto what = std::string(option) + ": got no DistributedOptimizer, expected one";
    EXPECT_THAT(refusal([&] { (void)ddp(x, 2); }), HasSubstr(what));
    EXPECT_THAT(refusal([&] { model->forward(x, 2).sum().backward(); }), HasSubstr(what));
    {
      const torch::NoGradGuard no_grad;
      EXPECT_EQ(ddp(x, 2).numel(), 5);
    }
    model->zero_grad();
    torch::optim::SGD sgd(model->parameters(), SGDOptions(0.1));
    {
      DistributedOptimizer optimizer(sgd, ddp);
      optimizer.backward_and_update(ddp(x, 2).sum());
    }
    EXPECT_THAT(refusal([&] { (void)ddp(x, 2); }), HasSubstr(what));
    DistributedOptimizer next(sgd, ddp);
    next.backward_and_update(ddp(x, 2).sum());
    expect_usable(world);
  }
}

// The mean of a parameter that the DistributedOptimizer does not update is whole.
TEST_P_ON_RANKS(WrappedModelSteps, LeaveTheGradientsOfOtherOptimizers) {
  for (const auto& how : {DataParallelOptions{}, DataParallelOptions{.shard = Shard::optimizer}}) {
    const auto net = std::make_shared<Net>(), other = std::make_shared<Net>();
    torch::optim::SGD body(net->first->parameters(), SGDOptions(0.1));
    torch::optim::SGD head(net->second->parameters(), SGDOptions(0.1));
    torch::optim::SGD of_other(other->parameters(), SGDOptions(0.1));
    auto each = how;
    each.buckets = one_each.buckets;
    DistributedDataParallel ddp(net, world, each);
    DistributedOptimizer optimizer(body, ddp), whole(of_other, *other, world);
    for (int step = 0; step < 3; ++step) {
      const auto x = random({4, 7}, static_cast<std::uint64_t>(10 * step + world.rank()));
      optimizer.backward_and_update(ddp(x, 2).sum());
      head.step();
      head.zero_grad();
      whole.backward_and_update(other->forward(x, 2).sum());
    }
    expect_equal_models(*net, *other);
  }
}

TEST_ON_RANKS(WrappedModel, ChecksAgainThatParametersCanBeMoved, 2) {
  DistributedDataParallel ddp(std::make_shared<Net>(), world, every_update[1]);
  torch::optim::SGD sgd(ddp.module()->parameters(), SGDOptions(0.1));
  {
    const auto alias = ddp.module()->first->weight.detach();
    EXPECT_THAT(refusal([&] { DistributedOptimizer(sgd, ddp); }),
                HasSubstr("parameter first.weight shares its memory with another tensor"));
  }
  DistributedOptimizer(sgd, ddp).backward_and_update(ddp(at::ones({1, 7}), 2).sum());
}

TEST_ON_RANKS(WrappedModel, HasOneDistributedOptimizerAtATime, 2) {
  const auto model = std::make_shared<Net>();
  DistributedDataParallel ddp(model, world);
  torch::optim::SGD sgd(model->parameters(), SGDOptions(0.1));
  Net elsewhere;
  torch::optim::SGD is_agreed(elsewhere.parameters(), SGDOptions(0.1));
  EXPECT_THAT(refusal([&] { DistributedOptimizer(is_agreed, ddp); }),
              HasSubstr("is not a parameter of the model"));
  {
    DistributedOptimizer optimizer(sgd, ddp);
    EXPECT_THAT(refusal([&] { DistributedOptimizer(sgd, ddp); }),
                HasSubstr("got a DistributedDataParallel that has a DistributedOptimizer"));
    optimizer.backward_and_update(ddp(at::ones({1, 7}), 2).sum());
  }
  // The wrapper alone, as before.
  ddp(at::full({1, 7}, 1.0 + world.rank()), 2).sum().backward();
  EXPECT_TRUE(model->second->bias.grad().defined());
  sgd.step();
  DistributedDataParallel divided(std::make_shared<Net>(), world, every_update[1]);
  torch::optim::LBFGS of_divided(divided.module()->parameters());
  expect_refused(world, "shard: got torch::optim::LBFGS",
                 [&] { DistributedOptimizer(of_divided, divided); });
}

}  // namespace
}  // namespace lockstep::testing
