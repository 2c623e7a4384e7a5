// DistributedOptimizer: the same gradients as DistributedDataParallel, and parameters in turns.
#include "tests/matchers.h"
#include "tests/parallel/models.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

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

SUITE_ON_RANKS(Optimizer, 1, 2, 3, 4, 7);

/// LBFGS evaluates the loss several times a step and chooses the length of the step by the losses.
TEST_P_ON_RANKS(Optimizer, TakesTheStepsOfLbfgsAsOneProcessDoes) {
  // Rank r has r samples, so rank 0 has none unless it is alone.
  const auto samples = [&](int rank) { return world.size() == 1 ? 4 : rank; };
  std::int64_t before = 0;
  std::int64_t total = 0;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (rank < world.rank()) before += samples(rank);
    total += samples(rank);
  }
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
      const int own = samples(world.rank());
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
  for (std::size_t i = 0; i < whole->parameters().size(); ++i) {
    EXPECT_LT(distance(model->parameters()[i], whole->parameters()[i]), 1e-8);
    EXPECT_GT(distance(make()->parameters()[i], whole->parameters()[i]), 1e-2);
    EXPECT_TRUE(same_on_all_ranks(model->parameters()[i], world));
  }
  // Another optimizer, and an ordinary step after it.
  SGD sgd(whole->parameters(), SGDOptions(0.1));
  DistributedOptimizer once(sgd, *whole, world);
  EXPECT_EQ(once.step([&] {
                  whole->forward(x).sum().backward();
                  return at::full({}, world.rank());
                })
                .item<double>(),
            (world.size() - 1) / 2.0);
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

TEST_ON_RANKS(OptimizerState, GoesOnWithTheTurnWhereItWas, 2) {
  const DataParallelOptions options{.buckets = one_each.buckets, .strategy = PartialUpdate{}};
  const auto train = [&](int steps_before_save) {
    Terms model(some_shapes);
    SGD sgd(model.parameters(), SGDOptions(1));
    auto optimizer = std::make_unique<DistributedOptimizer>(sgd, model, world, options);
    for (int step = 0; step < 4; ++step) {
      if (step == steps_before_save) {
        // As a restart would: parameters are put back after wrapping, which makes them equal.
        const auto state = optimizer->state();
        std::vector<at::Tensor> saved;
        for (const auto& parameter : model.p) saved.push_back(parameter.detach().clone());
        optimizer.reset();
        optimizer = std::make_unique<DistributedOptimizer>(sgd, model, world, options);
        optimizer->load_state(state);
        const torch::NoGradGuard no_grad;
        for (std::size_t i = 0; i < saved.size(); ++i) model.p[i].copy_(saved[i]);
      }
      optimizer->backward_and_update(model.forward(coefficients(world.rank(), model)));
    }
    return model.p[1].detach().clone();
  };
  const auto undisturbed = train(-1);
  for (const int steps : {1, 2, 3}) EXPECT_TRUE(torch::equal(train(steps), undisturbed));
}

TEST_ON_RANKS(OptimizerStart, RefusesParametersOfAnotherModelOnEveryRank, 3) {
  Terms model(some_shapes), other(some_shapes);
  auto parameters = model.parameters();
  if (world.rank() == 1) parameters.push_back(other.p[1]);
  SGD sgd(parameters, SGDOptions(1));
  expect_refused(world, "parameter #4 of the optimizer, of sizes [2, 5]",
                 [&] { DistributedOptimizer optimizer(sgd, model, world); });
}

}  // namespace
}  // namespace lockstep::testing
