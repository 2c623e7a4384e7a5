// Several optimizers over disjoint parameters of one model: as in one process.
#include "tests/matchers.h"
#include "tests/parallel/models.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

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
  for (int step = 0; step < 3; ++step) {
    backward(&Adversaries::generator_loss, 2 * step, of_critic);
    of_generator ? of_generator->step() : static_cast<void>(adam.step());
    backward(&Adversaries::critic_loss, 2 * step + 1, of_generator);
    of_critic ? of_critic->step() : static_cast<void>(sgd.step());
  }
  // One loss for both.
  model->zero_grad();
  loss_of(&Adversaries::critic_loss, 50).backward();
  if (ddp) {
    adam.step();
    sgd.step();
  } else {
    of_generator->step();
    of_critic->step();
  }
  auto tensors = model->parameters();
  for (const auto& buffer : model->buffers()) tensors.push_back(buffer);
  return tensors;
}

SUITE_ON_RANKS(SeveralOptimizers, 1, 2, 3);

TEST_P_ON_RANKS(SeveralOptimizers, TrainAsOneWrapperOfAllParameters) {
  const auto expected = trained(Way::data_parallel, world);
  for (const auto way : {Way::optimizers, Way::optimizers_apart}) {
    const auto got = trained(way, world);
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(at::equal(got[i], expected[i])) << i;
  }
}

TEST_ON_RANKS(SeveralOptimizersErrors, NameAParameterThatTwoClaim, 2) {
  const auto model = std::make_shared<Adversaries>();
  auto adam = adam_of(*model);
  torch::optim::SGD all(model->parameters(), 0.1);
  const DataParallelOptions options{.optimized_only = true};
  DistributedOptimizer first(adam, *model, world, options);
  const auto refused = [&](auto& optimizer, const DataParallelOptions& with) {
    EXPECT_THAT(refusal([&] { DistributedOptimizer second(optimizer, *model, world, with); }),
                AllOf(HasSubstr("parameter generator.weight: another wrapper already "
                                "synchronises it"),
                      HasSubstr("give each its own parameters and set "
                                "DataParallelOptions::optimized_only for all of them")));
  };
  refused(all, options);
  refused(all, {});
  auto sgd = sgd_of(*model);
  DistributedOptimizer second(sgd, *model, world, options);
  world.barrier().wait();
}

}  // namespace
}  // namespace lockstep::testing
