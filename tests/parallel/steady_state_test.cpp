// Resources that strategies use at every step, once the first steps have allocated buffers.
#include <ATen/core/grad_mode.h>
#include <sys/resource.h>

#include "lockstep/distributed_optimizer.h"
#include "lockstep/strategy.h"
#include "parallel/buckets/bucket_reducers.h"
#include "tests/parallel/large_requests.h"
#include "tests/parallel/models.h"
#include "tests/sync/on_hosts.h"

namespace lockstep::testing {
namespace {

/// A matrix and a vector, 4 MB in two buckets.
constexpr std::int64_t matrix_rows = 1000;
constexpr std::int64_t matrix_columns = 900;
constexpr std::int64_t vector_length = 100'000;
constexpr std::size_t page_bytes = 4096;
constexpr std::size_t bucket_bytes = matrix_rows * matrix_columns * sizeof(float);

struct StepsCost {
  std::size_t large_requests;  ///< of a percent of the larger bucket, or more
  long faults;
  int of_group_memory;  ///< requests of any size
};

long faults_of_this_thread() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

/// The cost of some steps, after as many steps of warm-up.
StepsCost cost_of(const Strategy& strategy, const Group& group, int steps, const OnHosts& memory) {
  const at::NoGradGuard no_grad;
  const std::vector<lockstep::NamedTensor> parameters{
      {"matrix", at::zeros({matrix_rows, matrix_columns})}, {"vector", at::zeros({vector_length})}};
  lockstep::detail::BucketReducers reducers(
      parameters, group, {.first = 0, .rest = 0},
      lockstep::detail::ParameterStrategies({.strategy = strategy}));
  std::vector<at::Tensor> gradients;
  for (std::size_t bucket = 0; bucket < reducers.size(); ++bucket) {
    gradients.push_back(random(reducers[bucket].bucket.values().sizes(),
                               static_cast<std::uint64_t>(group.rank()) * 10 + bucket));
  }
  const auto step = [&](std::int64_t number) {
    lockstep::detail::ExchangeRound round(reducers, SyncTarget::gradients, number);
    for (std::size_t bucket = 0; bucket < reducers.size(); ++bucket) {
      reducers[bucket].bucket.values().copy_(gradients[bucket]);
      round.wait_to_begin();
      round.begin_next();
    }
    EXPECT_EQ(round.complete(), nullptr);
    for (const auto& parameter : parameters) parameter.tensor.add_(1 + group.rank());
    reducers.exchange_parameters(number);
  };
  for (int i = 0; i < steps; ++i) step(i);
  group.barrier().wait();
  const int taken = memory.allocations();
  const long before = faults_of_this_thread();
  const LargeRequests large(bucket_bytes / 100);
  for (int i = steps; i < 2 * steps; ++i) step(i);
  return {.large_requests = large.count(),
          .faults = faults_of_this_thread() - before,
          .of_group_memory = memory.allocations() - taken};
}

constexpr const char* strategies[] = {"fp32",
                                      "fp16",
                                      "fp16:clip=1",
                                      "bf16",
                                      "topk:0.01",
                                      "topk:0.01,feedback=off",
                                      "threshold:2.5",
                                      "threshold:2.5,feedback=off",
                                      "threshold:0",
                                      "int8",
                                      "int8:feedback=off",
                                      "power_sgd:rank=4",
                                      "power_sgd:rank=4,feedback=off",
                                      "partial_update",
                                      "partial_update:of=gradients",
                                      "local_sgd:period=2",
                                      "post_local_sgd:start=1,period=2",
                                      "adasum",
                                      "warmup:1:topk:0.01"};

class SteadyState : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!LargeRequests::can_count()) GTEST_SKIP() << "a sanitizer has an allocator of its own";
  }
};

TEST_F(SteadyState, TakesNoMemoryThatGrowsWithTheBucket) {
  for (const char* text : strategies) {
    on_ranks(2, [&](const Group& world) {
      const auto without_shared_memory = std::make_shared<OnHosts>(
          world.communicator(), std::vector<int>(static_cast<std::size_t>(world.size())));
      for (const auto& group : {world, Group(without_shared_memory)}) {
        constexpr int steps = 6;
        const auto cost = cost_of(parse_strategy(text), group, steps, *without_shared_memory);
        EXPECT_EQ(cost.large_requests, 0U) << text;
        EXPECT_EQ(cost.of_group_memory, 0) << text;
        // One bucket's worth a step would be 879 each.
        EXPECT_LT(cost.faults, static_cast<long>(bucket_bytes / page_bytes / 16)) << text;
      }
      EXPECT_GT(without_shared_memory->allocations(), 0) << "of the buckets";
    });
  }
}

/// Large allocations of some whole training steps, after as many steps of warm-up.
std::size_t requests_of(int steps, const std::function<void()>& step) {
  for (int i = 0; i < steps; ++i) step();
  const LargeRequests large(bucket_bytes / 100);
  for (int i = 0; i < steps; ++i) step();
  return large.count();
}

TEST_F(SteadyState, WholeStepsTakeNoMoreThanWithoutLockstep) {
  constexpr int steps = 6;
  on_ranks(2, [](const Group& group) {
    const auto inputs = random({4, matrix_columns}, static_cast<std::uint64_t>(group.rank()));
    const auto requests = [&](const char* strategy) {
      torch::nn::Linear model(matrix_columns, matrix_rows);
      torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(1e-3).momentum(0.9));
      const auto loss = [&] { return model->forward(inputs).square().mean(); };
      if (strategy == nullptr) {
        return requests_of(steps, [&] {
          loss().backward();
          sgd.step();
          sgd.zero_grad();
        });
      }
      DistributedOptimizer optimizer(
          sgd, *model, group,
          {.buckets = {.first = 0, .rest = 0}, .strategy = parse_strategy(strategy)});
      return requests_of(steps, [&] { optimizer.backward_and_update(loss()); });
    };
    const auto without = requests(nullptr);
    EXPECT_GE(without, std::size_t{steps});  // the gradient
    for (const char* text : strategies) EXPECT_LE(requests(text), without) << text;
  });
}

}  // namespace
}  // namespace lockstep::testing
