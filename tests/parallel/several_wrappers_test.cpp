// Several wrappers on one group: any order that all ranks share works, another is an error. Several
// optimizers over disjoint parameters of one model: as in one process.
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
        expect_means(*twins.first, world, 1, reaches(1));
        expect_means(*twins.second, world, 1, reaches(2));
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
  const auto errors = errors_of(3, [](const Group& world) {
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

/// A generator and a critic, whose losses depend on both.
struct Adversaries : torch::nn::Module {
  Adversaries() { set_values(*this, 7); }
  at::Tensor score(const at::Tensor& noise) {
    return critic->forward(norm->forward(generator->forward(noise)).tanh());
  }
  at::Tensor generator_loss(const at::Tensor& noise) { return -score(noise).mean(); }
  at::Tensor critic_loss(const at::Tensor& noise) {
    return score(noise).mean() + critic->forward(noise.sin()).square().mean();
  }
  torch::nn::Linear generator = register_module("generator", torch::nn::Linear(5, 5));
  torch::nn::Linear critic = register_module("critic", torch::nn::Linear(5, 1));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(5));
};

std::vector<at::Tensor> generator_parameters(const Adversaries& model) {
  auto parameters = model.generator->parameters();
  for (const auto& parameter : model.norm->parameters()) parameters.push_back(parameter);
  return parameters;
}

torch::optim::Adam adam_of(const Adversaries& model) {
  return torch::optim::Adam(generator_parameters(model), torch::optim::AdamOptions(0.01));
}
torch::optim::SGD sgd_of(const Adversaries& model) {
  return torch::optim::SGD(model.critic->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
}

enum class Way { data_parallel, optimizers, optimizers_apart };

/// Trains the generator and the critic in turn. Returns the parameters and buffers.
std::vector<at::Tensor> trained(Way way, const Group& world) {
  const auto model = std::make_shared<Adversaries>();
  auto adam = adam_of(*model);
  auto sgd = sgd_of(*model);
  std::optional<DistributedDataParallel<ModelView>> ddp;
  std::optional<DistributedOptimizer> of_generator, of_critic;
  if (way == Way::data_parallel) {
    ddp.emplace(ModelView(*model), world);
  } else {
    of_generator.emplace(adam, *model, world, DataParallelOptions{.optimized_only = true});
    of_critic.emplace(sgd, *model, world, DataParallelOptions{.optimized_only = true});
  }
  const auto loss_of = [&](auto loss, int step) {
    const auto noise = random({4, 5}, static_cast<std::uint64_t>(100 * step + world.rank()));
    const auto forward = [&] { return (model.get()->*loss)(noise); };
    return ddp ? (*ddp)(forward) : forward();
  };
  const auto backward = [&](auto loss, int step, auto& other) {
    model->zero_grad();
    std::optional<NoSync> alone;
    if (way == Way::optimizers_apart) alone.emplace(other->no_sync());
    loss_of(loss, step).backward();
  };
  const auto step_generator = [&] {
    of_generator ? of_generator->step() : static_cast<void>(adam.step());
  };
  const auto step_critic = [&] { of_critic ? of_critic->step() : static_cast<void>(sgd.step()); };
  for (int step = 0; step < 3; ++step) {
    backward(&Adversaries::generator_loss, 2 * step, of_critic);
    step_generator();
    backward(&Adversaries::critic_loss, 2 * step + 1, of_generator);
    step_critic();
  }
  // One loss for both.
  model->zero_grad();
  loss_of(&Adversaries::critic_loss, 50).backward();
  step_generator();
  step_critic();
  auto tensors = model->parameters();
  for (const auto& buffer : model->buffers()) tensors.push_back(buffer);
  return tensors;
}

SUITE_ON_RANKS(SeveralOptimizers, 1, 2, 3);

TEST_P_ON_RANKS(SeveralOptimizers, TrainAsOneWrapperOfAllParameters) {
  const auto expected = trained(Way::data_parallel, world);
  for (const auto way : {Way::optimizers, Way::optimizers_apart})
    expect_equal_tensors(trained(way, world), expected);
}

TEST_ON_RANKS(SeveralOptimizersErrors, NameAParameterThatTwoClaim, 2) {
  const auto model = std::make_shared<Adversaries>();
  auto adam = adam_of(*model);
  torch::optim::SGD all(model->parameters(), 0.1);
  const DataParallelOptions options{.optimized_only = true};
  DistributedOptimizer first(adam, *model, world, options);
  for (const auto& with : {options, DataParallelOptions{}}) {
    EXPECT_THAT(refusal([&] { DistributedOptimizer second(all, *model, world, with); }),
                AllOf(HasSubstr("parameter generator.weight: another wrapper already "
                                "synchronises it"),
                      HasSubstr("give each its own parameters and set "
                                "DataParallelOptions::optimized_only for all of them")));
  }
  auto sgd = sgd_of(*model);
  DistributedOptimizer second(sgd, *model, world, options);
  world.barrier().wait();
}

}  // namespace
}  // namespace lockstep::testing
