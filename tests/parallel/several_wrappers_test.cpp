// Several wrappers on one group: any order that all ranks share works, another is an error.
#include "tests/matchers.h"
#include "tests/parallel/models.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

/// Two models of the same shapes.
struct Twins {
  explicit Twins(const Group& first_group, const Group& second_group,
                 const DataParallelOptions& options = {})
      : first_ddp(first, first_group, options), second_ddp(second, second_group, options) {}

  std::shared_ptr<Terms> first = make_terms(two_shapes), second = make_terms(two_shapes);
  DistributedDataParallel<Terms> first_ddp, second_ddp;
};

SUITE_ON_RANKS(SeveralWrappers, 1, 2, 3, 4);

/// The last rank has one wrapper fewer. Ranks compare a wrapper's number with every operation.
TEST_P_ON_RANKS(SeveralWrappers, HaveTheSameNumbersOnRanksThatHaveFewer) {
  const bool is_last = world.rank() + 1 == world.size();
  const Group part = world.split(is_last ? 1 : 0);
  std::unique_ptr<DistributedDataParallel<Terms>> of_part;
  if (!is_last)
    of_part = std::make_unique<DistributedDataParallel<Terms>>(make_terms(two_shapes), part);
  const auto model = make_terms(two_shapes);
  DistributedDataParallel of_all(model, world);
  of_all(coefficients(world.rank(), *model)).backward();
  expect_means(*model, world);
}

/// By rank, the wrappers that its backward reaches: 1 for the first, 2 for the second, 3 for both.
using Reached = std::vector<int>;

TEST(UnusedWrapper, TakesPartWithoutGradients) {
  for (const auto& wrappers :
       {Reached{3, 1}, Reached{1, 3}, Reached{3, 2}, Reached{2, 3, 3}, Reached{3, 1, 1, 3}}) {
    const auto ranks = static_cast<int>(wrappers.size());
    const auto reaches = [&](int wrapper) {
      return [&wrappers, wrapper](int rank) {
        return (wrappers[static_cast<std::size_t>(rank)] & wrapper) != 0;
      };
    };
    on_ranks(ranks, [&](const Group& world) {
      Twins twins(world, world, one_each);
      for (int step = 0; step < 3; ++step) {
        twins.first->zero_grad();
        twins.second->zero_grad();
        const auto terms = coefficients(world.rank(), *twins.first);
        std::vector<at::Tensor> losses;
        if (reaches(1)(world.rank())) losses.push_back(twins.first_ddp(terms));
        if (reaches(2)(world.rank())) losses.push_back(twins.second_ddp(terms));
        at::stack(losses).sum().backward();
        for (const int wrapper : {1, 2}) {
          const auto& p = (wrapper == 1 ? twins.first : twins.second)->p;
          for (std::size_t i = 0; i < p.size(); ++i)
            EXPECT_TRUE(near(p[i].grad(), mean_coefficient(ranks, i, p[i], reaches(wrapper))));
        }
      }
    });
  }
}

TEST_ON_RANKS(SwappedWrappers, AreAnErrorThatNamesBothAndLeavesTheGroupUsable, 2, 3) {
  Twins twins(world, world, one_each);
  const auto terms = coefficients(world.rank(), *twins.first);
  for (int step = 0; step < 2; ++step) {
    auto& ddp = world.rank() == 1 ? twins.second_ddp : twins.first_ddp;
    EXPECT_THAT(
        refusal([&] { ddp(terms).backward(); }),
        AllOf(HasSubstr("DistributedDataParallel #1"), HasSubstr("DistributedDataParallel #2")));
    twins.first->zero_grad();
    twins.second->zero_grad();
    twins.first_ddp(terms).backward();
    expect_means(*twins.first, world);
    twins.first->zero_grad();
  }
}

TEST(SwappedWrappers, OfTwoGroupsAreAnErrorAndNoDeadlock) {
  for (const int ranks : {2, 3}) {
    const auto errors = errors_of(ranks, [](const Group& world) {
      const Group second_group = world.split(0);
      Twins twins(world, second_group);
      const auto terms = coefficients(world.rank(), *twins.first);
      const bool swapped = world.rank() == 1;
      (swapped ? twins.second_ddp : twins.first_ddp)(terms).backward();
      (swapped ? twins.first_ddp : twins.second_ddp)(terms).backward();
    });
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("deadlock"), HasSubstr("DistributedDataParallel #1"),
                                   HasSubstr("DistributedDataParallel #2"))));
  }
}

TEST(SwappedOptimizers, AreAnErrorThatNamesBoth) {
  const auto errors = errors_of(2, [](const Group& world) {
    OptimizedTerms first(world), second(world);
    const auto step = [](OptimizedTerms& one) { one.optimizer.backward_and_update(one.loss()); };
    step(world.rank() == 0 ? first : second);
    step(world.rank() == 0 ? second : first);
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("DistributedOptimizer #1"),
                                 HasSubstr("DistributedOptimizer #2"))));
}

}  // namespace
}  // namespace lockstep::testing
