// Which gradients are averaged, when, and with which weights.
#include <thread>

#include "lockstep/strategies.h"
#include "tests/parallel/models.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

const DataParallelOptions one_bucket_or_many[] = {{}, one_each};

SUITE_ON_RANKS(Reduction, 1, 2, 3, 4, 7);

TEST_P_ON_RANKS(Reduction, LeavesParametersThatNoRankUses) {
  for (const auto& options : one_bucket_or_many) {
    auto model = make_terms(some_shapes);
    DistributedDataParallel ddp(model, world, options);
    auto terms = coefficients(world.rank(), *model);
    terms[1] = terms[3] = at::Tensor();
    const auto mean = mean_coefficient(world.size(), 2, model->p[2]);
    ddp(terms).backward();
    EXPECT_FALSE(model->p[1].grad().defined());
    EXPECT_FALSE(model->p[3].grad().defined());
    EXPECT_TRUE(near(model->p[2].grad(), mean));

    // With a gradient: the same bits, in the bucket or out of it.
    ddp(coefficients(world.rank(), *model)).backward();
    const auto in_bucket = model->p[1].grad().clone();
    const auto mine = at::full({1}, 0.1F * static_cast<float>(world.rank() + 1));
    model->p[3].mutable_grad() = mine;
    ddp(terms).backward();
    EXPECT_TRUE(torch::equal(model->p[1].grad(), in_bucket));
    EXPECT_TRUE(model->p[3].grad().is_same(mine));
    EXPECT_EQ(mine.item<float>(), 0.1F * static_cast<float>(world.rank() + 1));

    model->zero_grad(false);
    ddp(terms).backward();
    EXPECT_EQ(model->p[1].grad().abs().sum().item<float>(), 0);
    EXPECT_TRUE(near(model->p[2].grad(), mean));
  }
}

TEST_P_ON_RANKS(Reduction, IsNoneOfAutogradGradAndOfChosenInputsOnly) {
  for (const auto& options : one_bucket_or_many) {
    auto model = make_terms(some_shapes);
    DistributedDataParallel ddp(model, world, options);
    // On one rank alone: it would hang if it were synchronised.
    if (world.rank() == 0) {
      const auto mine = coefficients(0, *model);
      const auto gradient = torch::autograd::grad({ddp(mine)}, {model->p[0]})[0];
      EXPECT_TRUE(near(gradient, mine[0]));
      const auto input = at::ones({2}).set_requires_grad(true);
      const std::vector<at::Tensor> inputs{input};
      ddp(mine, input).backward({}, std::nullopt, false, inputs);
      EXPECT_FALSE(model->p[0].grad().defined());
    }
    const std::vector<at::Tensor> inputs{model->p[2]};
    ddp(coefficients(world.rank(), *model)).backward({}, std::nullopt, false, inputs);
    EXPECT_FALSE(model->p[0].grad().defined());
    EXPECT_TRUE(near(model->p[2].grad(), mean_coefficient(world.size(), 2, model->p[2])));
  }
}

/// Notes bucket and stage of each collective of a strategy with two, and with three for odd
/// buckets. Which rank is the last differs from collective to collective.
struct Staged {
  using Issued = std::vector<std::pair<std::size_t, int>>;

  struct Running final : Exchange {
    explicit Running(Issued* into) : issued(into) {}
    ExchangeTask exchange(std::int64_t, Bucket& of, const Group& group) override {
      const int stages = of.index() % 2 == 1 ? 3 : 2;
      for (int stage = 0; stage < stages; ++stage) {
        const int lateness = (group.rank() + 2 * static_cast<int>(of.index()) + stage) % 3;
        std::this_thread::sleep_for(std::chrono::microseconds(300 * lateness));
        issued->emplace_back(of.index(), stage);
        co_await group.all_reduce(of.values(), stage == 0 ? ReduceOp::avg : ReduceOp::max);
      }
    }
    Issued* issued;
  };
  std::string text() const { return "staged"; }
  std::unique_ptr<Exchange> exchange(const Bucket&) const {
    return std::make_unique<Running>(issued);
  }
  Issued* issued;
};

TEST_ON_RANKS(IssueOrder, IsLearntFromRankZeroAfterTheFirstBackward, 3) {
  /// p0 first, then p2, then p1: not as they were registered, and on each rank another way.
  struct Shuffled : Terms {
    Shuffled() : Terms({{2}, {2}, {2}}) {}
    at::Tensor forward(const std::vector<std::size_t>& used) {
      auto x = at::ones({2});
      for (const auto i : used) x = x * p[i];
      return x.sum();
    }
  };
  auto model = std::make_shared<Shuffled>();
  Staged::Issued issued;
  DistributedDataParallel ddp(model, world,
                              {.buckets = one_each.buckets, .strategy = Staged{&issued}});
  // Backward meets the last factor first.
  const auto used = [&] {
    std::vector<std::size_t> factors{1, 2, 0};
    std::rotate(factors.begin(), factors.begin() + world.rank(), factors.end());
    return factors;
  };
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    (ddp(used()) * (world.rank() + 1)).backward();
    for (const auto& parameter : model->p) EXPECT_TRUE(near(parameter.grad(), at::full({2}, 2.0F)));
  }
  std::vector<std::size_t> order;
  for (const auto& [bucket, stage] : issued)
    if (stage == 0) order.push_back(bucket);
  // Bucket b holds parameter 2 - b.
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 2, 0, 1, 2, 0, 1));
}

TEST_ON_RANKS(IssueOrder, LetsLaterStagesRunDuringTheBackwardInAnOrderOfPositions, 1, 3) {
  const Staged::Issued expected{{0, 0}, {1, 0}, {2, 0}, {0, 1}, {3, 0}, {1, 1},
                                {4, 0}, {2, 1}, {1, 2}, {3, 1}, {4, 1}, {3, 2}};
  auto model = make_terms({{2}, {2}, {2}, {2}, {2}});
  Staged::Issued issued;
  DistributedDataParallel ddp(model, world,
                              {.buckets = one_each.buckets, .strategy = Staged{&issued}});
  std::size_t issued_at_the_last_hook = 0;
  model->p[0].register_hook([&](const at::Tensor&) { issued_at_the_last_hook = issued.size(); });
  const auto terms = coefficients(world.rank(), *model);
  for (int step = 0; step < 2; ++step) {  // the first exchanges all buckets at its end
    issued.clear();
    model->zero_grad();
    ddp(terms).backward();
    EXPECT_EQ(issued, expected);
    expect_means(*model, world);
  }
  if (world.size() == 1) {
    EXPECT_EQ(issued_at_the_last_hook, 6U);
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

// Zeros in place of its gradient let momentum go on.
TEST_ON_RANKS(Weight, OfZeroUsesNoParameterForTheOtherRanks, 3) {
  for (const auto& options : every_update) {
    OptimizedTerms one(world, options, two_shapes, torch::optim::SGDOptions(1).momentum(0.9));
    one.loss().backward();
    one.optimizer.step();
    one.optimizer.zero_grad();
    const auto before = one.model.p[1].detach().clone();
    auto terms = coefficients(world.rank(), one.model);
    if (world.rank() > 0) terms[1] = at::Tensor();
    one.optimizer.weight(world.rank());
    one.optimizer.backward_and_update(one.model.forward(terms));
    EXPECT_TRUE(torch::equal(one.model.p[1], before));
  }
}

// Divided updates lost the mean.
TEST_ON_RANKS(Weight, OfZeroLeavesTheMeanThatTheOtherRanksHave, 3) {
  for (const auto& options : every_update) {
    OptimizedTerms one(world, options, two_shapes, torch::optim::SGDOptions(1));
    const auto before = one.model.p[1].detach().clone();
    one.loss().backward();
    auto terms = coefficients(world.rank(), one.model);
    if (world.rank() > 0) terms[1] = at::Tensor();
    one.optimizer.weight(world.rank());
    one.optimizer.backward_and_update(one.model.forward(terms));
    EXPECT_TRUE(near(one.model.p[1], before - mean_coefficient(world.size(), 1, before)));
  }
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
      for (const double weight : of_rank1) {
        optimizer.weight(world.rank() == 1 ? weight : 2);
        one.accumulate();
      }
      const auto error =
          thrown_by<InvalidArgument>([&] { steps ? optimizer.step() : one.loss().backward(); });
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("got 3 and then "),
                        HasSubstr("on rank 1 before one exchange, expected one weight")));
      EXPECT_EQ(error.rank(), 1);
      EXPECT_EQ(error.operation(), "weight");
      optimizer.zero_grad();
      one.loss().backward();
      expect_means(one.model, world);
    }
  }
}

TEST_ON_RANKS(Weight, ThatIsUnusableIsRefusedOnEveryRank, 3) {
  const auto nan = std::nan("");
  // A rank without a batch has no backward, in which the others meet the weights.
  for (const auto& [rank0, others, have_loss, text, culprit] :
       {std::tuple(1.0, -2.0, true, "got -2 on rank 1, expected 0 or more", 1),
        {nan, 1.0, true, "got nan on rank 0, expected 0 or more", 0},
        {nan, 0.0, false, "got nan on rank 0, expected 0 or more", 0},
        {0.0, 0.0, true, "got 0 on every rank", -1}}) {
    OptimizedTerms one(world);
    one.optimizer.weight(world.rank() == 0 ? rank0 : others);
    const auto loss = have_loss || world.rank() == 0 ? one.loss() : at::Tensor();
    const auto error = thrown_by<InvalidArgument>([&] { one.optimizer.backward_and_update(loss); });
    EXPECT_THAT(error.what(), HasSubstr(text));
    EXPECT_EQ(error.rank(), culprit);
    EXPECT_EQ(error.operation(), "weight");
    one.optimizer.zero_grad();
    one.loss().backward();
    expect_means(one.model, world);
    if (!have_loss) continue;
    auto model = make_terms(some_shapes);
    DistributedDataParallel ddp(model, world);
    ddp.weight(world.rank() == 0 ? rank0 : others);
    EXPECT_THAT(refusal([&] { ddp(coefficients(world.rank(), *model)).backward(); }),
                HasSubstr(text));
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
