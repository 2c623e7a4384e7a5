// One copy of the parameters for all ranks, of which each updates a part: the same numbers, bit for
// bit, as when every rank updates its own.
#include <unistd.h>

#include <thread>

#include "comm/flight/flight_record.h"
#include "tests/parallel/trainings.h"
#include "tests/refusal.h"
#include "tests/sync/on_hosts.h"

namespace lockstep::testing {
namespace {

using torch::optim::AdamOptions;
using torch::optim::SGDOptions;

const DataParallelOptions shared{.share_memory = true};

Make fused(const SGDOptions& options) { return one_group<FusedSgd>(options); }

SUITE_ON_RANKS(SharedUpdate, 1, 2, 3, 4, 7);

TEST_P_ON_RANKS(SharedUpdate, TakesTheSameStepsAsUpdatesOfEveryRankAndSavesTheSameFile) {
  auto optimizers = every_optimizer;
  optimizers.emplace_back("FusedSgd without state", fused(SGDOptions(0.1)));
  optimizers.emplace_back("SGD without state", one_group<torch::optim::SGD>(SGDOptions(0.1)));
  optimizers.emplace_back("FusedAdam", one_group<FusedAdam>(AdamOptions(0.01).weight_decay(0.01)));
  for (const auto& [name, make] : optimizers) {
    SCOPED_TRACE(name);
    expect_same_steps(world, make, shared);
  }
}

/// Parameters of all floating-point dtypes. The second is updated in several chunks by each rank.
struct OfDtypes : torch::nn::Module {
  OfDtypes() {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      register_parameter(toString(dtype), at::full({83}, 0.5, dtype));
    }
    register_parameter("large", at::full({150'001}, 0.5));
  }
  at::Tensor loss(const Group& world, int step) {
    auto sum = at::zeros({}, at::kDouble);
    for (const auto& parameter : parameters()) {
      const auto slope = random(parameter.sizes(),
                                static_cast<std::uint64_t>(10 * step + world.rank()), at::kDouble);
      sum = sum + (parameter.to(at::kDouble) * slope).sum();
    }
    return sum;
  }
};

TEST_P_ON_RANKS(SharedUpdate, KeepsTheBitsOfEveryDtypeAndOfLargeParameters) {
  for (const auto& [name, make] : every_optimizer) {
    SCOPED_TRACE(name);
    OfDtypes models[2];
    const auto one_copy = make(models[0].parameters()), own = make(models[1].parameters());
    DistributedOptimizer of_one_copy(*one_copy, models[0], world, shared);
    DistributedOptimizer of_own(*own, models[1], world, DataParallelOptions{});
    for (int step = 0; step < 3; ++step) {
      of_one_copy.backward_and_update(models[0].loss(world, step));
      of_own.backward_and_update(models[1].loss(world, step));
      expect_equal_replicas(world, models[0], models[1]);
    }
  }
}

TEST_ON_RANKS(SharedUpdateStart, NeedsAnOptimizerOfAllParameters, 2) {
  Mlp model;
  torch::optim::SGD sgd(std::vector<at::Tensor>{model.layers[0]->weight}, SGDOptions(0.1));
  for (auto how : {shared, DataParallelOptions{.shard = Shard::gradients}}) {
    EXPECT_THAT(refusal([&] { DistributedOptimizer(sgd, model, world, how); }),
                HasSubstr(": parameter layer0.bias is not in the optimizer, expected all"));
    how.optimized_only = true;
    DistributedOptimizer optimizer(sgd, model, world, how);
    optimizer.backward_and_update(model.forward(at::ones({1, 7})).sum());
  }
}

/// Training steps in the flight record of this rank.
std::uint64_t steps_of(const Group& world) {
  std::uint64_t steps = 0;
  for (const auto& record : detail::read_flight_records()) {
    if (record->file().pid != ::getpid() || record->rank() != world.rank()) continue;
    if (record->size() == world.size()) steps = std::max(steps, record->step());
  }
  return steps;
}

TEST_P_ON_RANKS(SharedUpdate, CountsItsStepsAsAWrapperItsBackwards) {
  Trained trained(world, fused(SGDOptions(0.1)), shared);
  const auto before = steps_of(world);
  trained.optimizer.backward_and_update(trained.model.loss(world, 0));
  EXPECT_EQ(steps_of(world), before + 1);
  trained.model.loss(world, 1).backward();
  trained.optimizer.step();
  EXPECT_EQ(steps_of(world), before + 2);
  const auto model = make_terms(some_shapes);
  DistributedDataParallel ddp(model, world);
  for (int step = 0; step < 3; ++step) ddp(coefficients(world.rank(), *model)).backward();
  EXPECT_EQ(steps_of(world), before + 5);
  world.barrier().wait();
}

TEST_P_ON_RANKS(SharedUpdate, KeepsOneCopyUntilItEnds) {
  auto trained = std::make_unique<Trained>(world, fused(SGDOptions(0.1).momentum(0.9)), shared);
  trained->step(world, 0);
  world.barrier().wait();
  if (world.rank() == 0) {
    trained->model.doubles.detach().fill_(3);
    trained->model.frozen.fill_(4);
  }
  world.barrier().wait();
  EXPECT_EQ(trained->model.doubles.detach().sum().item<double>(), 3 * 37);
  EXPECT_EQ(trained->model.frozen.sum().item<double>() == 20, world.rank() == 0);
  world.barrier().wait();

  // Rank 0, in whose memory it lies, lets go of it first, and fills what it gets then.
  Mixed model;
  FusedSgd sgd(Trained::with_values(model, world), SGDOptions(0.1));
  auto optimizer = std::make_unique<DistributedOptimizer>(sgd, model, world, shared);
  const auto before = model.mlp->layers[0]->weight.detach().clone();
  world.barrier().wait();
  std::vector<at::Tensor> others;
  if (world.rank() == 0) {
    optimizer.reset();
    for (int i = 0; i < 50; ++i) others.push_back(world.empty({1000}).fill_(-1));
  }
  world.barrier().wait();
  EXPECT_TRUE(torch::equal(model.mlp->layers[0]->weight.detach(), before));
  optimizer.reset();
  EXPECT_TRUE(torch::equal(model.mlp->layers[0]->weight.detach(), before));
  model.doubles.detach().fill_(world.rank());
  world.barrier().wait();
  EXPECT_EQ(model.doubles.detach().sum().item<double>(), 37 * world.rank());
}

TEST_P_ON_RANKS(SharedUpdate, FollowsParametersThatChangeTheirGroups) {
  const auto make =
      in_groups<torch::optim::SGD>(SGDOptions(0.1).momentum(0.9), SGDOptions(0.01).momentum(0.9));
  Trained got(world, make, shared), expected(world, make, {});
  for (int step = 0; step < 3; ++step) {
    for (auto* trained : {&got, &expected}) {
      auto& groups = trained->base->param_groups();
      if (step == 1) std::swap(groups[0].params()[0], groups[1].params()[0]);
      trained->step(world, step);
    }
    expect_equal_replicas(world, got.model, expected.model);
  }
}

TEST_ON_RANKS(SharedUpdateStep, RefusesAParameterWithOtherMemory, 2) {
  Mlp model;
  FusedSgd sgd(model.parameters(), SGDOptions(0.1));
  DistributedOptimizer optimizer(sgd, model, world, shared);
  auto& bias = model.layers[2]->bias;
  bias.set_data(bias.detach().clone());
  const auto text = lockstep::detail::concat(
      "rank ", world.rank(), " of 2: parameter layer2.bias was moved to other memory");
  expect_refused(world, text, [&] {
    optimizer.backward_and_update(model.forward(at::ones({1, 7})).sum());
  });
}

struct FailingSgd : FusedSgd {
  using FusedSgd::FusedSgd;
  void update(const at::Tensor& /*parameter*/, const Elements& /*elements*/) override {
    throw std::runtime_error("the update has failed");
  }
  at::Tensor step(LossClosure closure = nullptr) override {
    if (++buckets == 2) throw std::runtime_error("the update has failed");
    return FusedSgd::step(closure);
  }
  int buckets = 0;
};

void expect_failure_on_all_ranks(const Group& world, const DataParallelOptions& how) {
  const TemporaryFolder folder;
  const auto failing = one_group<FailingSgd>(SGDOptions(0.1));
  Trained trained(world, world.rank() == 1 ? failing : fused(SGDOptions(0.1)), how);
  const auto loss = trained.model.loss(world, 1);
  EXPECT_THAT(message_of<std::exception>([&] { trained.optimizer.backward_and_update(loss); }),
              HasSubstr("the update has failed"));
  const Checkpoint checkpoint{.model = trained.model, .optimizer = *trained.base};
  EXPECT_ANY_THROW(checkpoint.save(folder / "half", {}, world));
  EXPECT_FALSE(std::filesystem::exists(folder / "half"));
}

TEST_ON_RANKS(SharedUpdateStep, ThatFailsOnOneRankFailsOnAllAndLeavesNoCheckpoint, 3) {
  expect_failure_on_all_ranks(world, shared);
}

TEST_ON_RANKS(ShardedUpdateStep, ThatFailsOnOneRankFailsOnAllAndLeavesNoCheckpoint, 3) {
  expect_failure_on_all_ranks(world, {.buckets = one_each.buckets, .shard = Shard::optimizer});
}

/// Each update takes longer than the other ranks need to read all parameters.
struct SlowSgd : FusedSgd {
  using FusedSgd::FusedSgd;
  void update(const at::Tensor& parameter, const Elements& elements) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    FusedSgd::update(parameter, elements);
  }
};

TEST_ON_RANKS(SharedUpdateStep, EndsWhenAllRanksHaveUpdatedTheirParts, 2) {
  auto x = at::zeros({1000}).requires_grad_();
  const ModelView model({{.name = "x", .tensor = x}});
  FusedSgd sgd({x}, SGDOptions(1));
  SlowSgd slow({x}, SGDOptions(1));
  auto& base = world.rank() == 1 ? static_cast<torch::optim::Optimizer&>(slow) : sgd;
  DistributedOptimizer optimizer(base, model, world, shared);
  optimizer.backward_and_update(x.sum());
  EXPECT_EQ(x.detach().sum().item<float>(), -1000);
  world.barrier().wait();
}

TEST(SharedTrainingBetweenHosts, HasOneCopyAHostAndTheBitsOfTheUnsharedTraining) {
  for (const auto& hosts : {std::vector<int>{0, 0, 1, 1}, std::vector<int>{0, 1, 1}}) {
    on_ranks(static_cast<int>(hosts.size()), [&](const Group& ranks) {
      const auto world = on_hosts(ranks, hosts);
      for (const auto& [name, make] : every_optimizer) {
        SCOPED_TRACE(name);
        expect_same_steps(world, make, shared);
      }
      Trained trained(world, every_optimizer[0].second, shared);
      world.barrier().wait();
      if (world.local_rank() == 0) trained.model.doubles.detach().fill_(world.node());
      world.barrier().wait();
      EXPECT_EQ(trained.model.doubles.detach().sum().item<double>(), 37 * world.node());
      world.barrier().wait();
    });
  }
}

TEST_ON_RANKS(SharedTrainingBetweenHosts, RefusesHostsWhoseRanksDoNotShareMemory, 2) {
  const auto apart = on_hosts(world, {0, 0});
  Mlp model;
  torch::optim::SGD sgd(model.parameters(), SGDOptions(0.1));
  expect_refused(apart, "share_memory: got ranks of one host on the on hosts backend",
                 [&] { DistributedOptimizer(sgd, model, apart, shared); });
}

}  // namespace
}  // namespace lockstep::testing
