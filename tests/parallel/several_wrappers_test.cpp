// Several wrappers on one group: any order that all ranks share works, another is an error.

#include "lockstep/distributed_optimizer.h"
#include "tests/matchers.h"
#include "tests/parallel/models.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

/// Two models of the same shapes.
struct Twins {
  explicit Twins(const Group& first_group, const Group& second_group,
                 const DataParallelOptions& options = {})
      : first(std::make_shared<Terms>(two_shapes)),
        second(std::make_shared<Terms>(two_shapes)),
        first_ddp(first, first_group, options),
        second_ddp(second, second_group, options) {}

  std::shared_ptr<Terms> first, second;
  DistributedDataParallel<Terms> first_ddp, second_ddp;
};

class SeveralWrappers : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SeveralWrappers, ::testing::Values(1, 2, 3, 4));

/// The last rank has one wrapper fewer. Ranks compare a wrapper's number with every operation.
TEST_P(SeveralWrappers, HaveTheSameNumbersOnRanksThatHaveFewer) {
  on_ranks(GetParam(), [](const Group& world) {
    const bool is_last = world.rank() + 1 == world.size();
    const Group part = world.split(is_last ? 1 : 0);
    std::unique_ptr<DistributedDataParallel<Terms>> of_part;
    if (!is_last) {
      of_part = std::make_unique<DistributedDataParallel<Terms>>(
          std::make_shared<Terms>(two_shapes), part);
    }
    const auto model = std::make_shared<Terms>(two_shapes);
    DistributedDataParallel<Terms> of_all(model, world);
    of_all(coefficients(world.rank(), *model)).backward();
    expect_means(*model, world);
  });
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
          for (std::size_t i = 0; i < p.size(); ++i) {
            EXPECT_TRUE(near(p[i].grad(), mean_coefficient(ranks, i, p[i], reaches(wrapper))));
          }
        }
      }
    });
  }
}

/// The error that each rank's use of two wrappers raises.
template <class Use>
std::vector<std::string> errors_of(int ranks, const Use& use) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  try {
    on_ranks(ranks, [&](const Group& world) {
      try {
        use(world);
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(world.rank())] = error.what();
        throw;
      }
    });
  } catch (const Error&) {
    // The first of them once more.
  }
  return errors;
}

TEST(SwappedWrappers, AreAnErrorThatNamesBothAndLeavesTheGroupUsable) {
  for (const int ranks : {2, 3}) {
    on_ranks(ranks, [](const Group& world) {
      Twins twins(world, world, one_each);
      const auto terms = coefficients(world.rank(), *twins.first);
      for (int step = 0; step < 2; ++step) {
        auto& ddp = world.rank() == 1 ? twins.second_ddp : twins.first_ddp;
        EXPECT_THAT(refusal([&] { ddp(terms).backward(); }),
                    AllOf(HasSubstr("DistributedDataParallel #1"),
                          HasSubstr("DistributedDataParallel #2")));
        twins.first->zero_grad();
        twins.second->zero_grad();
        twins.first_ddp(terms).backward();
        expect_means(*twins.first, world);
        twins.first->zero_grad();
      }
    });
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
    for (const auto& error : errors) {
      EXPECT_THAT(error, AllOf(HasSubstr("deadlock"), HasSubstr("DistributedDataParallel #1"),
                               HasSubstr("DistributedDataParallel #2")));
    }
  }
}

TEST(SwappedOptimizers, AreAnErrorThatNamesBoth) {
  const auto errors = errors_of(2, [](const Group& world) {
    Terms a(two_shapes);
    Terms b(two_shapes);
    torch::optim::SGD sgd_a(a.parameters(), torch::optim::SGDOptions(1));
    torch::optim::SGD sgd_b(b.parameters(), torch::optim::SGDOptions(1));
    DistributedOptimizer first(sgd_a, a, world);
    DistributedOptimizer second(sgd_b, b, world);
    const auto step = [&](DistributedOptimizer& optimizer, Terms& model) {
      optimizer.backward_and_update(model.forward(coefficients(world.rank(), model)));
    };
    if (world.rank() == 0) {
      step(first, a);
      step(second, b);
    } else {
      step(second, b);
      step(first, a);
    }
  });
  for (const auto& error : errors) {
    EXPECT_THAT(error,
                AllOf(HasSubstr("DistributedOptimizer #1"), HasSubstr("DistributedOptimizer #2")));
  }
}

}  // namespace
}  // namespace lockstep::testing
