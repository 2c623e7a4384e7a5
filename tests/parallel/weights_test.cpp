// Ranks whose gradients do not count alike.
#include <torch/torch.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/distributed_data_parallel.h"
#include "lockstep/distributed_optimizer.h"
#include "lockstep/error.h"
#include "lockstep/strategies.h"
#include "tests/matchers.h"
#include "tests/parallel/models.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

class Weighted : public ::testing::TestWithParam<int> {};

TEST_P(Weighted, GradientIsTheWeightedMean) {
  const int ranks = GetParam();
  const auto weight = [&](int rank, int step) {
    return (rank + step) % 3 == 0 ? 0.0 : 1.5 * rank + 1;
  };
  on_ranks(ranks, [&](const Group& world) {
    auto model = std::make_shared<Terms>(some_shapes, at::kDouble);
    DistributedDataParallel ddp(model, world, {.buckets = {.first = 0, .rest = 0}});
    for (int step = 1; step <= 3; ++step) {
      double sum = 0;
      for (int rank = 0; rank < ranks; ++rank) sum += weight(rank, step);
      if (sum == 0) continue;
      model->zero_grad();
      ddp.weight(weight(world.rank(), step));
      ddp(coefficients(world.rank(), *model)).backward();
      for (std::size_t i = 0; i < some_shapes.size(); ++i) {
        auto expected = at::zeros(some_shapes[i], at::kDouble);
        for (int rank = 0; rank < ranks; ++rank) {
          expected += coefficient(rank, i, model->p[i]) * (weight(rank, step) / sum);
        }
        EXPECT_TRUE(near(model->p[i].grad(), expected));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Weighted, ::testing::Values(1, 2, 3, 4, 7));

TEST(Weight, EqualOnAllRanksChangesNoBit) {
  on_ranks(3, [](const Group& world) {
    auto model = std::make_shared<Terms>(some_shapes);
    DistributedDataParallel ddp(model, world);
    ddp(coefficients(world.rank(), *model)).backward();
    const auto plain = model->p[1].grad().clone();
    model->zero_grad();
    ddp.weight(0.3);
    ddp(coefficients(world.rank(), *model)).backward();
    EXPECT_TRUE(torch::equal(model->p[1].grad(), plain));
  });
}

TEST(Weight, CountsForOneExchange) {
  on_ranks(3, [](const Group& world) {
    auto model = std::make_shared<Terms>(some_shapes);
    DistributedDataParallel ddp(model, world);
    const auto& p = model->p[0];
    const auto weighted = (coefficient(1, 0, p) + 2 * coefficient(2, 0, p)) / 3;
    for (const bool again : {true, false}) {
      model->zero_grad();
      ddp.weight(world.rank());
      ddp(coefficients(world.rank(), *model)).backward();
      if (again) ddp.weight(world.rank());
      ddp(coefficients(world.rank(), *model)).backward();
      EXPECT_TRUE(near(p.grad(), weighted + (again ? weighted : mean_coefficient(3, 0, p))));
    }
  });
}

// It counted in the exchange of the next step.
TEST(Weight, OfAStepThatIsAveragedAlreadyIsRefusedOnEveryRank) {
  on_ranks(3, [](const Group& world) {
    Terms model(some_shapes);
    torch::optim::SGD sgd(model.parameters(), 0.1);
    DistributedOptimizer optimizer(sgd, model, world);
    const auto backward = [&] { model.forward(coefficients(world.rank(), model)).backward(); };
    backward();
    optimizer.weight(world.rank() + 1);
    EXPECT_THAT(refusal([&] { optimizer.step(); }),
                HasSubstr("after the gradients of this step were averaged, expected a weight "));
    optimizer.zero_grad();
    backward();
    expect_means(model, world);
    optimizer.step();
    optimizer.zero_grad();
    // No rank has a loss.
    optimizer.weight(world.rank() + 1);
    optimizer.backward_and_update(at::Tensor());
    backward();
    expect_means(model, world);
  });
}

// The last of several weights counted for all micro-batches.
TEST(Weight, OfEachMicroBatchIsRefusedOnEveryRank) {
  // Differs on rank 1 only. The last weights are equal to the first in the second case.
  for (const auto& of_rank1 : {std::vector<double>{3, 5, 4}, {3, 5, 3}}) {
    on_ranks(3, [&](const Group& world) {
      auto model = std::make_shared<Terms>(some_shapes);
      torch::optim::SGD sgd(model->parameters(), 0.1);
      for (const bool steps : {false, true}) {
        DistributedOptimizer optimizer(sgd, *model, world);
        const auto accumulate = [&] {
          const auto local = optimizer.no_sync();
          for (const double weight : of_rank1) {
            optimizer.weight(world.rank() == 1 ? weight : 2);
            model->forward(coefficients(world.rank(), *model)).backward();
          }
        };
        try {
          accumulate();
          if (steps) {
            optimizer.step();
          } else {
            model->forward(coefficients(world.rank(), *model)).backward();
          }
          ADD_FAILURE() << "took the weights";
        } catch (const InvalidArgument& error) {
          EXPECT_THAT(error.what(), HasSubstr("got 3 and then "));
          EXPECT_THAT(error.what(),
                      HasSubstr("on rank 1 before one exchange, expected one weight"));
          EXPECT_EQ(error.rank(), 1);
          EXPECT_EQ(error.operation(), "weight");
        }
        optimizer.zero_grad();
        model->forward(coefficients(world.rank(), *model)).backward();
        EXPECT_TRUE(near(model->p[0].grad(), mean_coefficient(3, 0, model->p[0])));
        optimizer.step();
        optimizer.zero_grad();
      }
    });
  }
}

// A rank without a batch has no backward, in which the others meet the weights.
TEST(Weight, ThatIsUnusableIsRefusedOnARankWithoutALoss) {
  on_ranks(3, [](const Group& world) {
    auto model = std::make_shared<Terms>(some_shapes);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    DistributedOptimizer optimizer(sgd, *model, world);
    const auto loss = [&] { return model->forward(coefficients(world.rank(), *model)); };
    optimizer.weight(world.rank() == 0 ? std::nan("") : 0);
    try {
      optimizer.backward_and_update(world.rank() == 0 ? loss() : at::Tensor());
      ADD_FAILURE() << "took the weights";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr("got nan on rank 0, expected 0 or more"));
      EXPECT_EQ(error.rank(), 0);
      EXPECT_EQ(error.operation(), "weight");
    }
    optimizer.zero_grad();
    optimizer.backward_and_update(loss());
  });
}

TEST(Weight, ThatIsUnusableIsRefusedOnEveryRank) {
  struct Case {
    double rank0, others;
    std::string text;
  };
  for (const auto& each : {Case{1, -2, "got -2 on rank 1, expected 0 or more"},
                           Case{std::nan(""), 1, "got nan on rank 0, expected 0 or more"},
                           Case{0, 0, "got 0 on every rank"}}) {
    on_ranks(3, [&](const Group& world) {
      auto model = std::make_shared<Terms>(some_shapes);
      DistributedDataParallel ddp(model, world);
      ddp.weight(world.rank() == 0 ? each.rank0 : each.others);
      EXPECT_THAT(refusal([&] { ddp(coefficients(world.rank(), *model)).backward(); }),
                  HasSubstr(each.text));
      model->zero_grad();
      ddp(coefficients(world.rank(), *model)).backward();
      EXPECT_TRUE(near(model->p[0].grad(), mean_coefficient(3, 0, model->p[0])));
    });
  }
}

// Adasum multiplied the gradients by N ÷ (ranks of another weight than 0).
TEST(Weight, IsRefusedOnEveryRankByAStrategyThatDoesNotAverage) {
  const Adasum adasum{.of = SyncTarget::gradients};
  for (const auto& options :
       {DataParallelOptions{.strategy = adasum}, DataParallelOptions{.strategy = warmup(adasum, 3)},
        DataParallelOptions{.strategies = {{"p1", adasum}}}}) {
    on_ranks(3, [&](const Group& world) {
      auto model = std::make_shared<Terms>(two_shapes);
      const auto expect_refusal = [&](auto& wrapper) {
        EXPECT_THAT(refusal([&] { wrapper.weight(world.rank()); }),
                    AllOf(HasSubstr("got a weight of "), HasSubstr("adasum:of=gradients, which")));
        model->forward(coefficients(world.rank(), *model)).backward();
        model->zero_grad();
      };
      {
        DistributedDataParallel ddp(model, world, options);
        expect_refusal(ddp);
      }
      torch::optim::SGD sgd(model->parameters(), 0.1);
      DistributedOptimizer optimizer(sgd, *model, world, options);
      expect_refusal(optimizer);
      optimizer.step();
    });
  }
}

}  // namespace
}  // namespace lockstep::testing
