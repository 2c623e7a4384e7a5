// Which gradients are averaged, and when.
#include "tests/matchers.h"
#include "tests/parallel/models.h"

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

TEST_P_ON_RANKS(Reduction, HeldBackAveragesTheSumLater) {
  for (const auto& options : one_bucket_or_many) {
    auto model = make_terms(some_shapes);
    DistributedDataParallel ddp(model, world, options);
    const auto terms = coefficients(world.rank(), *model);
    auto only_third = std::vector<at::Tensor>(some_shapes.size());
    only_third[2] = terms[2];
    for (const bool touch_all : {true, false}) {
      model->zero_grad();
      {
        const auto guard = ddp.no_sync();
        ddp(terms).backward();
        const auto inner = ddp.no_sync();
        ddp(terms).backward();
        EXPECT_TRUE(near(model->p[0].grad(), 2 * terms[0]));
      }
      // Those that the synchronised backward does not reach are averaged too.
      ddp(touch_all ? terms : only_third).backward();
      for (std::size_t i = 0; i < some_shapes.size(); ++i) {
        const int times = touch_all || i == 2 ? 3 : 2;
        const auto mean = mean_coefficient(world.size(), i, model->p[i]);
        EXPECT_TRUE(near(model->p[i].grad(), times * mean));
      }
    }
  }
}

/// Notes bucket and stage of each collective of a strategy with two, and with three for odd
/// buckets.
struct Staged {
  using Issued = std::vector<std::pair<std::size_t, int>>;

  struct Running final : Exchange {
    explicit Running(Issued* into) : issued(into) {}
    ExchangeTask exchange(std::int64_t, Bucket& of, const Group& group) override {
      const int stages = of.index() % 2 == 1 ? 3 : 2;
      for (int stage = 0; stage < stages; ++stage) {
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
  for (int step = 0; step < 3; ++step) ddp(used()).backward();
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
  }
  if (world.size() == 1) {
    EXPECT_EQ(issued_at_the_last_hook, 6U);
  }
  EXPECT_TRUE(near(model->p[1].grad(), mean_coefficient(world.size(), 1, model->p[1])));
}

}  // namespace
}  // namespace lockstep::testing
