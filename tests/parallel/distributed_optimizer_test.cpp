// DistributedOptimizer: the same gradients as DistributedDataParallel, and parameters in turns.
#include "lockstep/distributed_optimizer.h"

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/distributed_data_parallel.h"
#include "tests/matchers.h"
#include "tests/parallel/models.h"
#include "tests/refusal.h"
#include "tests/on_ranks.h"

namespace lockstep::testing {
namespace {

using torch::optim::SGD;
using torch::optim::SGDOptions;

const std::vector<std::vector<std::int64_t>> three_shapes{{3}, {2, 5}, {17}};

/// Averages the parameters of one bucket at each step.
struct InTurn {
  std::string text() const { return "in_turn"; }
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const {
    return AllReduce{}.exchange(bucket);
  }
  SyncTarget target(std::int64_t step, std::size_t bucket, std::size_t buckets) const {
    return static_cast<std::size_t>(step) % buckets == bucket ? SyncTarget::parameters
                                                              : SyncTarget::none;
  }
};

struct Linears : torch::nn::Module {
  Linears() {
    register_module("first", first);
    register_module("second", second);
    to(own_device());
    set_values(*this, 7);
  }
  at::Tensor loss(int rank) {
    const auto x = torch::full({1, 2}, 1.0 + rank).to(own_device());
    return second->forward(first->forward(x)).sum();
  }
  torch::nn::Linear first{2, 3}, second{3, 3};
};

DataParallelOptions one_each_by(Strategy strategy) {
  return {.buckets = {.first = 0, .rest = 0}, .strategy = std::move(strategy)};
}

TEST(OptimizerOfAHolder, AveragesTheGradientsOfItsModule) {
  on_ranks(2, [](const Group& world) {
    torch::nn::Linear model(2, 1);
    model->to(own_device());
    set_values(*model, 7);
    SGD sgd(parameters(model), SGDOptions(1));
    DistributedOptimizer optimizer(sgd, model, world);
    const auto before = model->weight.detach().clone();
    optimizer.backward_and_update(
        model(torch::full({1, 2}, 1.0 + world.rank()).to(own_device())).sum());
    EXPECT_TRUE(torch::equal(model->weight, before - 1.5));
  });
}

TEST(OptimizerOfParameters, RefusesOneThatIsAddedAndNotWrapped) {
  on_ranks(2, [](const Group& world) {
    for (const bool optimized_only : {false, true}) {
      const auto model = std::make_shared<Linears>();
      SGD sgd(model->first->parameters(), SGDOptions(0.1));
      DistributedOptimizer optimizer(sgd, *model, world, {.optimized_only = optimized_only});
      const auto loss = [&] { return model->loss(world.rank()); };
      optimizer.backward_and_update(loss());
      sgd.add_param_group(torch::optim::OptimizerParamGroup(model->second->parameters()));
      if (!optimized_only) {
        optimizer.backward_and_update(loss());  // the wrapper averages their gradients
        sgd.add_param_group(torch::optim::OptimizerParamGroup(
            {torch::ones({3}).to(own_device()).requires_grad_()}));
      }
      EXPECT_THAT(refusal([&] { optimizer.backward_and_update(loss()); }),
                  HasSubstr("was added after the construction, and the model that was wrapped "
                            "lacks it"));
      expect_usable(world);
    }
  });
}

TEST(OptimizerOfParameters, CopiesAndComparesAlsoTheOthers) {
  on_ranks(3, [](const Group& world) {
    Linears model;
    for (auto& parameter : model.second->parameters()) {
      parameter.requires_grad_(false);
      parameter.fill_(world.rank() + 1);
    }
    SGD sgd(model.first->parameters(), SGDOptions(0.1));
    const DataParallelOptions options{.optimized_only = true};
    {
      const DistributedOptimizer optimizer(sgd, model, world, options);
      EXPECT_EQ(model.second->weight.sum().item<double>(), model.second->weight.numel());
    }
    if (world.rank() == 1) model.second->weight.set_data(torch::ones({9}).to(own_device()));
    EXPECT_THAT(refusal([&] { DistributedOptimizer(sgd, model, world, options); }),
                HasSubstr("second.weight"));
    expect_usable(world);
  });
}

// Autograd gives a parameter without dimensions a gradient that is a negated view.
TEST(OptimizerOfParameters, TakesANegatedViewAsAGradient) {
  on_ranks(2, [](const Group& world) {
    for (DataParallelOptions options : {DataParallelOptions{},
                                        {.shard = Shard::optimizer},
                                        {.shard = Shard::gradients},
                                        {.share_memory = true}}) {
      options.buckets = {.first = 0, .rest = 0};
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
  });
}

class Optimizer : public ::testing::TestWithParam<int> {};

/// LBFGS evaluates the loss several times a step and chooses the length of the step by the losses.
TEST_P(Optimizer, TakesTheStepsOfLbfgsAsOneProcessDoes) {
  on_ranks(GetParam(), [](const Group& world) {
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
    const auto model = make();
    const auto whole = make();
    torch::optim::LBFGS lbfgs(model->parameters(), options);
    torch::optim::LBFGS expected(whole->parameters(), options);
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
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Optimizer, ::testing::Values(1, 2, 3, 4, 7));

TEST(OptimizerClosure, IsRefusedOnEveryRank) {
  on_ranks(2, [](const Group& world) {
    Terms model(three_shapes);
    SGD sgd(model.parameters(), SGDOptions(1));
    const auto refused = [&](DistributedOptimizer& optimizer, const at::Tensor& loss) {
      return refusal([&] { optimizer.step([&] { return loss; }); });
    };
    {
      DistributedOptimizer optimizer(sgd, model, world, parse_strategy("local_sgd:period=2"));
      EXPECT_THAT(refused(optimizer, at::ones({})),
                  HasSubstr("step(closure): got a strategy that"));
    }
    DistributedOptimizer optimizer(sgd, model, world);
    EXPECT_THAT(refused(optimizer, at::ones({world.rank() + 1})),
                HasSubstr(world.rank() == 0 ? "a loss of several elements on another rank"
                                            : "a loss of 2 elements on this rank"));
    EXPECT_EQ(refused(optimizer, at::ones({})), "");
  });
}

TEST(OptimizerState, GoesOnWithTheTurnWhereItWas) {
  on_ranks(2, [](const Group& world) {
    const auto train = [&](int steps_before_save) {
      Terms model(three_shapes);
      SGD sgd(model.parameters(), SGDOptions(1));
      auto optimizer =
          std::make_unique<DistributedOptimizer>(sgd, model, world, one_each_by(InTurn{}));
      for (int step = 0; step < 4; ++step) {
        if (step == steps_before_save) {
          // As a restart would: parameters are put back after wrapping, which makes them equal.
          const auto state = optimizer->state();
          std::vector<at::Tensor> saved;
          for (const auto& parameter : model.p) saved.push_back(parameter.detach().clone());
          optimizer.reset();
          optimizer =
              std::make_unique<DistributedOptimizer>(sgd, model, world, one_each_by(InTurn{}));
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
  });
}

TEST(OptimizerStart, RefusesParametersOfAnotherModelOnEveryRank) {
  on_ranks(3, [](const Group& world) {
    Terms model(three_shapes);
    Terms other(three_shapes);
    auto parameters = model.parameters();
    if (world.rank() == 1) parameters.push_back(other.p[1]);
    SGD sgd(parameters, SGDOptions(1));
    EXPECT_THAT(refusal([&] { DistributedOptimizer optimizer(sgd, model, world); }),
                HasSubstr("parameter #3 of the optimizer, of sizes [2, 5]"));
    world.barrier().wait();
  });
}

}  // namespace
}  // namespace lockstep::testing
