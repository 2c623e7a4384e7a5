// Ranks whose gradients do not count alike.
#include "lockstep/strategies.h"
#include "tests/matchers.h"
#include "tests/parallel/models.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

SUITE_ON_RANKS(Weighted, 1, 2, 3, 4, 7);

TEST_P_ON_RANKS(Weighted, GradientIsTheWeightedMean) {
  const int ranks = world.size();
  const auto weight = [&](int rank, int step) {
    return (rank + step) % 3 == 0 ? 0.0 : 1.5 * rank + 1;
  };
  auto model = make_terms(some_shapes, at::kDouble);
  DistributedDataParallel ddp(model, world, one_each);
  for (int step = 1; step <= 3; ++step) {
    double sum = 0;
    for (int rank = 0; rank < ranks; ++rank) sum += weight(rank, step);
    if (sum == 0) continue;
    model->zero_grad();
    ddp.weight(weight(world.rank(), step));
    ddp(coefficients(world.rank(), *model)).backward();
    for (std::size_t i = 0; i < some_shapes.size(); ++i) {
      auto expected = at::zeros(some_shapes[i], at::kDouble);
      for (int rank = 0; rank < ranks; ++rank)
        expected += coefficient(rank, i, model->p[i]) * (weight(rank, step) / sum);
      EXPECT_TRUE(near(model->p[i].grad(), expected));
    }
  }
}

TEST_ON_RANKS(Weight, EqualOnAllRanksChangesNoBit, 3) {
  auto model = make_terms(some_shapes);
  DistributedDataParallel ddp(model, world);
  ddp(coefficients(world.rank(), *model)).backward();
  const auto plain = model->p[1].grad().clone();
  model->zero_grad();
  ddp.weight(0.3);
  ddp(coefficients(world.rank(), *model)).backward();
  EXPECT_TRUE(torch::equal(model->p[1].grad(), plain));
}

// It counted in the exchange of the next step.
TEST_ON_RANKS(Weight, OfAStepThatIsAveragedAlreadyIsRefusedOnEveryRank, 3) {
  OptimizedTerms one(world);
  auto& optimizer = one.optimizer;
  one.loss().backward();
  optimizer.weight(world.rank() + 1);
  EXPECT_THAT(refusal([&] { optimizer.step(); }),
              HasSubstr("after the gradients of this step were averaged, expected a weight "));
  optimizer.zero_grad();
  one.loss().backward();
  expect_means(one.model, world);
  optimizer.step();
  optimizer.zero_grad();
  // No rank has a loss.
  optimizer.weight(world.rank() + 1);
  optimizer.backward_and_update(at::Tensor());
  one.loss().backward();
  expect_means(one.model, world);
}

// The last of several weights counted for all micro-batches.
TEST_ON_RANKS(Weight, OfEachMicroBatchIsRefusedOnEveryRank, 3) {
  // Differs on rank 1 only. The last weights are equal to the first in the second case.
  for (const auto& of_rank1 : {std::vector<double>{3, 5, 4}, {3, 5, 3}}) {
    for (const bool steps : {false, true}) {
      OptimizedTerms one(world);
      auto& optimizer = one.optimizer;
      {
        const auto local = optimizer.no_sync();
        for (const double weight : of_rank1) {
          optimizer.weight(world.rank() == 1 ? weight : 2);
          one.loss().backward();
        }
      }
      try {
        steps ? optimizer.step() : one.loss().backward();
        ADD_FAILURE() << "took the weights";
      } catch (const InvalidArgument& error) {
        EXPECT_THAT(error.what(),
                    AllOf(HasSubstr("got 3 and then "),
                          HasSubstr("on rank 1 before one exchange, expected one weight")));
        EXPECT_EQ(error.rank(), 1);
        EXPECT_EQ(error.operation(), "weight");
      }
      optimizer.zero_grad();
      one.loss().backward();
      expect_means(one.model, world);
    }
  }
}

// A rank without a batch has no backward, in which the others meet the weights.
TEST_ON_RANKS(Weight, ThatIsUnusableIsRefusedOnARankWithoutALoss, 3) {
  OptimizedTerms one(world);
  auto& optimizer = one.optimizer;
  optimizer.weight(world.rank() == 0 ? std::nan("") : 0);
  try {
    optimizer.backward_and_update(world.rank() == 0 ? one.loss() : at::Tensor());
    ADD_FAILURE() << "took the weights";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("got nan on rank 0, expected 0 or more"));
    EXPECT_EQ(error.rank(), 0);
    EXPECT_EQ(error.operation(), "weight");
  }
  optimizer.zero_grad();
  optimizer.backward_and_update(one.loss());
}

TEST_ON_RANKS(Weight, ThatIsUnusableIsRefusedOnEveryRank, 3) {
  for (const auto& [rank0, others, text] :
       {std::tuple(1.0, -2.0, "got -2 on rank 1, expected 0 or more"),
        {std::nan(""), 1.0, "got nan on rank 0, expected 0 or more"},
        {0.0, 0.0, "got 0 on every rank"}}) {
    auto model = make_terms(some_shapes);
    DistributedDataParallel ddp(model, world);
    ddp.weight(world.rank() == 0 ? rank0 : others);
    EXPECT_THAT(refusal([&] { ddp(coefficients(world.rank(), *model)).backward(); }),
                HasSubstr(text));
    model->zero_grad();
    ddp(coefficients(world.rank(), *model)).backward();
    expect_means(*model, world);
  }
}

// Adasum multiplied the gradients by N ÷ (ranks of another weight than 0).
TEST_ON_RANKS(Weight, IsRefusedOnEveryRankByAStrategyThatDoesNotAverage, 3) {
  const Adasum adasum{.of = SyncTarget::gradients};
  for (const auto& options :
       {DataParallelOptions{.strategy = adasum}, DataParallelOptions{.strategy = warmup(adasum, 3)},
        DataParallelOptions{.strategies = {{"p1", adasum}}}}) {
    auto model = make_terms(two_shapes);
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
  }
}

}  // namespace
}  // namespace lockstep::testing
