// Which gradients are averaged, and when.

#include <algorithm>

#include "tests/matchers.h"
#include "tests/parallel/models.h"

namespace lockstep::testing {
namespace {

class Reduction : public ::testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  static int ranks() { return std::get<0>(GetParam()); }
  static DataParallelOptions options() {
    return std::get<1>(GetParam()) ? one_each : DataParallelOptions{};
  }
};

TEST_P(Reduction, LeavesParametersThatNoRankUses) {
  on_ranks(ranks(), [](const Group& world) {
    auto model = std::make_shared<Terms>(some_shapes);
    DistributedDataParallel ddp(model, world, options());
    auto terms = coefficients(world.rank(), *model);
    terms[1] = terms[3] = at::Tensor();
    ddp(terms).backward();
    EXPECT_FALSE(model->p[1].grad().defined());
    EXPECT_FALSE(model->p[3].grad().defined());
    EXPECT_TRUE(near(model->p[2].grad(), mean_coefficient(ranks(), 2, model->p[2])));

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
    EXPECT_TRUE(near(model->p[2].grad(), mean_coefficient(ranks(), 2, model->p[2])));
  });
}

TEST_P(Reduction, IsNoneOfAutogradGradAndOfChosenInputsOnly) {
  on_ranks(ranks(), [](const Group& world) {
    auto model = std::make_shared<Terms>(some_shapes);
    DistributedDataParallel ddp(model, world, options());
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
    EXPECT_TRUE(near(model->p[2].grad(), mean_coefficient(ranks(), 2, model->p[2])));
  });
}

TEST_P(Reduction, HeldBackAveragesTheSumLater) {
  on_ranks(ranks(), [](const Group& world) {
    auto model = std::make_shared<Terms>(some_shapes);
    DistributedDataParallel ddp(model, world, options());
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
        EXPECT_TRUE(near(model->p[i].grad(), times * mean_coefficient(ranks(), i, model->p[i])));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Reduction,
                         Combine(::testing::Values(1, 2, 3, 4, 7), ::testing::Bool()),
                         [](const auto& instance) {
                           return std::to_string(std::get<0>(instance.param)) +
                                  (std::get<1>(instance.param) ? "_many_buckets" : "_one_bucket");
                         });

/// Notes the order in which buckets are exchanged.
struct Noting {
  std::string text() const { return "noting"; }
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const {
    struct Mean final : Exchange {
      explicit Mean(std::vector<std::size_t>* into) : order(into) {}
      ExchangeTask exchange(std::int64_t, Bucket& of, const Group& group) override {
        order->push_back(of.index());
        co_await group.all_reduce(of.values(), ReduceOp::avg);
      }
      std::vector<std::size_t>* order;
    };
    static_cast<void>(bucket);
    return std::make_unique<Mean>(order);
  }
  std::vector<std::size_t>* order;
};

TEST(IssueOrder, IsLearntFromRankZeroAfterTheFirstBackward) {
  on_ranks(3, [](const Group& world) {
    /// p0 first, then p2, then p1: not as they were registered, and on each rank another way.
    struct Shuffled : Terms {
      using Terms::Terms;
      at::Tensor forward(const std::vector<std::size_t>& used) {
        auto x = at::ones({2});
        for (const auto i : used) x = x * p[i];
        return x.sum();
      }
    };
    auto model = std::make_shared<Shuffled>(std::vector<std::vector<std::int64_t>>(3, {2}));
    std::vector<std::size_t> order;
    DistributedDataParallel ddp(model, world,
                                {.buckets = {.first = 0, .rest = 0}, .strategy = Noting{&order}});
    // Backward meets the last factor first.
    const auto used = [&] {
      std::vector<std::size_t> factors{1, 2, 0};
      std::rotate(factors.begin(), factors.begin() + world.rank(), factors.end());
      return factors;
    };
    for (int step = 0; step < 3; ++step) ddp(used()).backward();
    // Bucket b holds parameter 2 - b.
    EXPECT_THAT(order, ElementsAre(0, 1, 2, 2, 0, 1, 2, 0, 1));
  });
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

TEST(IssueOrder, LetsLaterStagesRunDuringTheBackwardInAnOrderOfPositions) {
  const Staged::Issued expected{{0, 0}, {1, 0}, {2, 0}, {0, 1}, {3, 0}, {1, 1},
                                {4, 0}, {2, 1}, {1, 2}, {3, 1}, {4, 1}, {3, 2}};
  for (const int ranks : {1, 3}) {
    on_ranks(ranks, [&](const Group& world) {
      auto model = std::make_shared<Terms>(std::vector<std::vector<std::int64_t>>(5, {2}));
      Staged::Issued issued;
      DistributedDataParallel ddp(
          model, world, {.buckets = {.first = 0, .rest = 0}, .strategy = Staged{&issued}});
      std::size_t issued_at_the_last_hook = 0;
      model->p[0].register_hook(
          [&](const at::Tensor&) { issued_at_the_last_hook = issued.size(); });
      const auto terms = coefficients(world.rank(), *model);
      for (int step = 0; step < 2; ++step) {  // the first exchanges all buckets at its end
        issued.clear();
        model->zero_grad();
        ddp(terms).backward();
        EXPECT_EQ(issued, expected);
      }
      if (ranks == 1) {
        EXPECT_EQ(issued_at_the_last_hook, 6U);
      }
      EXPECT_TRUE(near(model->p[1].grad(), mean_coefficient(ranks, 1, model->p[1])));
    });
  }
}

}  // namespace
}  // namespace lockstep::testing
