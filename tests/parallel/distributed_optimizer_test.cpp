// DistributedOptimizer: the same gradients as DistributedDataParallel, and parameters in turns.
#include "lockstep/distributed_optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/distributed_data_parallel.h"
#include "lockstep/error.h"
#include "tests/parallel/models.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
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

DataParallelOptions one_each_by(Strategy strategy) {
  return {.buckets = {.first = 0, .rest = 0}, .strategy = std::move(strategy)};
}

bool equal_on_all_ranks(const at::Tensor& tensor, const Group& world) {
  const auto mine = tensor.detach().contiguous();
  auto all = at::empty({world.size() * mine.numel()}, mine.options());
  world.all_gather(all, mine).wait();
  for (const auto& theirs : all.chunk(world.size())) {
    if (!torch::equal(theirs, mine.flatten())) return false;
  }
  return true;
}

class Optimizer : public ::testing::TestWithParam<int> {};

TEST_P(Optimizer, TakesTheSameStepsAsDistributedDataParallel) {
  on_ranks(GetParam(), [](const Group& world) {
    auto a = std::make_shared<Mlp>();
    auto b = std::make_shared<Mlp>();
    for (const auto& each : {a, b}) set_values(*each, static_cast<std::uint64_t>(world.rank()));
    SGD sgd_a(a->parameters(), SGDOptions(0.1).momentum(0.9));
    SGD sgd_b(b->parameters(), SGDOptions(0.1).momentum(0.9));
    DistributedDataParallel ddp(a, world);
    DistributedOptimizer optimizer(sgd_b, *b, world);
    for (int step = 0; step < 5; ++step) {
      const auto x = random({4, 7}, static_cast<std::uint64_t>(10 * step + world.rank()));
      sgd_a.zero_grad();
      ddp(x).pow(2).mean().backward();
      torch::nn::utils::clip_grad_norm_(a->parameters(), 0.2);
      sgd_a.step();
      if (step % 2 == 0) {
        b->forward(x).pow(2).mean().backward();
        torch::nn::utils::clip_grad_norm_(b->parameters(), 0.2);
        optimizer.step();
        optimizer.zero_grad();
      } else {
        // A backward under no_sync adds to what backward_and_update exchanges.
        const auto loss = [&] { return b->forward(x).pow(2).mean(); };
        {
          const auto local = optimizer.no_sync();
          (loss() * 0.25).backward();
        }
        (loss() * 0.75).backward();
        torch::nn::utils::clip_grad_norm_(b->parameters(), 0.2);
        optimizer.backward_and_update({});
      }
    }
    for (std::size_t i = 0; i < a->parameters().size(); ++i) {
      EXPECT_LT(distance(b->parameters()[i], a->parameters()[i]), 1e-6);
      EXPECT_TRUE(equal_on_all_ranks(b->parameters()[i], world));
    }
  });
}

TEST_P(Optimizer, IncludesARankWhoseLossReachesNoParameter) {
  on_ranks(GetParam(), [](const Group& world) {
    const int ranks = world.size();
    Terms model(three_shapes);
    SGD sgd(model.parameters(), SGDOptions(1));
    DistributedOptimizer optimizer(sgd, model, world);
    const auto uses = [ranks](int rank) { return ranks == 1 || rank != ranks - 1; };
    for (int step = 1; step <= 3; ++step) {
      if (uses(world.rank())) {
        optimizer.backward_and_update(model.forward(coefficients(world.rank(), model)));
      } else if (step == 1) {
        optimizer.backward_and_update(at::ones({}));
      } else if (step == 2) {
        optimizer.backward_and_update(at::Tensor());
      } else {
        optimizer.step();
      }
      const auto expected = 1 - step * mean_coefficient(ranks, 2, model.p[2], uses);
      EXPECT_TRUE(near(model.p[2].detach(), expected));
    }
  });
}

TEST_P(Optimizer, AveragesParametersInTurn) {
  on_ranks(GetParam(), [](const Group& world) {
    const int ranks = world.size();
    Terms model(three_shapes);
    SGD sgd(model.parameters(), SGDOptions(1));
    DistributedOptimizer optimizer(sgd, model, world, one_each_by(InTurn{}));
    // Bucket b holds parameter 2 - b. Each rank goes its own way until the parameter's turn.
    auto expected = std::vector<at::Tensor>{};
    for (const auto& shape : three_shapes) expected.push_back(at::ones(shape));
    for (std::size_t step = 0; step < 3; ++step) {
      optimizer.backward_and_update(model.forward(coefficients(world.rank(), model)));
      for (std::size_t i = 0; i < 3; ++i) {
        if (2 - step == i) {
          const auto passed = static_cast<int>(step) + 1;
          expected[i] = 1 - passed * mean_coefficient(ranks, i, model.p[i]);
          EXPECT_TRUE(equal_on_all_ranks(model.p[i], world));
        } else {
          expected[i] = expected[i] - coefficient(world.rank(), i, model.p[i]);
        }
        EXPECT_TRUE(near(model.p[i].detach(), expected[i])) << "step " << step << ", p" << i;
      }
    }
    optimizer.synchronize();
    for (const auto& parameter : model.p) EXPECT_TRUE(equal_on_all_ranks(parameter, world));
    EXPECT_TRUE(near(model.p[2].detach(), 1 - 3 * mean_coefficient(ranks, 2, model.p[2])));
  });
}

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
      EXPECT_TRUE(equal_on_all_ranks(loss.reshape({1}).to(own_device()), world));
    }
    EXPECT_GT(evaluations, 6);
    for (std::size_t i = 0; i < whole->parameters().size(); ++i) {
      EXPECT_LT(distance(model->parameters()[i], whole->parameters()[i]), 1e-8);
      EXPECT_GT(distance(make()->parameters()[i], whole->parameters()[i]), 1e-2);
      EXPECT_TRUE(equal_on_all_ranks(model->parameters()[i], world));
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
    EXPECT_TRUE(equal_on_all_ranks(whole->parameters()[0], world));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Optimizer, ::testing::Values(1, 2, 3, 4, 7));

TEST(OptimizerClosure, IsRefusedOnEveryRank) {
  on_ranks(2, [](const Group& world) {
    Terms model(three_shapes);
    SGD sgd(model.parameters(), SGDOptions(1));
    const auto refused = [&](DistributedOptimizer& optimizer, const at::Tensor& loss) {
      try {
        optimizer.step([&] { return loss; });
      } catch (const InvalidArgument& error) {
        return std::string(error.what());
      }
      return std::string("no error");
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
    EXPECT_EQ(refused(optimizer, at::ones({})), "no error");
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

TEST(OptimizerState, OfSomethingElseIsRefused) {
  on_ranks(1, [](const Group& world) {
    Terms model(three_shapes);
    SGD sgd(model.parameters(), SGDOptions(1));
    DistributedOptimizer optimizer(sgd, model, world);
    EXPECT_THROW(optimizer.load_state({}), InvalidArgument);
  });
}

TEST(OptimizerStart, RefusesParametersOfAnotherModelOnEveryRank) {
  on_ranks(3, [](const Group& world) {
    Terms model(three_shapes);
    Terms other(three_shapes);
    auto parameters = model.parameters();
    if (world.rank() == 1) parameters.push_back(other.p[1]);
    SGD sgd(parameters, SGDOptions(1));
    try {
      DistributedOptimizer optimizer(sgd, model, world);
      ADD_FAILURE() << "took a parameter of another model";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr("parameter #3 of the optimizer, of sizes [2, 5]"));
    }
    world.barrier().wait();
  });
}

TEST(OptimizerStart, TakesStrategiesThatTheWrapperRefuses) {
  on_ranks(2, [](const Group& world) {
    auto model = std::make_shared<Terms>(three_shapes);
    try {
      DistributedDataParallel ddp(model, world, one_each_by(InTurn{}));
      ADD_FAILURE() << "took a strategy that exchanges parameters";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr("use DistributedOptimizer"));
    }
    SGD sgd(model->parameters(), SGDOptions(1));
    DistributedOptimizer optimizer(sgd, *model, world, InTurn{});
    EXPECT_THROW((DistributedDataParallel(model, world)), InvalidArgument);
  });
}

}  // namespace
}  // namespace lockstep::testing
