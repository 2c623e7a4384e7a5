#include <gtest/gtest.h>
#include <torch/torch.h>

#include <mutex>
#include <vector>

#include "lockstep/distributed_data_parallel.h"
#include "lockstep/sync_batch_norm.h"
#include "tests/adapter/adapted_ranks.h"
#include "tests/parallel/models.h"

// Training over a c10d::Backend gives the bits of the host backend.

namespace lockstep::testing {
namespace {

struct Normalised : torch::nn::Module {
  explicit Normalised(const Group& world)
      : first(register_module("first", torch::nn::Linear(7, 40))),
        norm(register_module("norm", SyncBatchNorm(torch::nn::BatchNormOptions(40), world))),
        last(register_module("last", torch::nn::Linear(40, 3))) {}
  at::Tensor forward(const at::Tensor& x) {
    return last->forward(norm->forward(first->forward(x)).tanh());
  }
  torch::nn::Linear first;
  SyncBatchNorm norm;
  torch::nn::Linear last;
};

/// Every rank's parameters after some steps.
using Parameters = std::vector<std::vector<at::Tensor>>;

void train(const Group& world, const Strategy& strategy, Parameters& into) {
  auto model = std::make_shared<Normalised>(world);
  set_values(*model, 3);
  DistributedDataParallel ddp(model, world,
                              {.buckets = {.first = 64, .rest = 300}, .strategy = strategy});
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  for (std::uint64_t step = 0; step < 10; ++step) {
    const auto seed = 10 * step + static_cast<std::uint64_t>(world.rank());
    sgd.zero_grad();
    torch::mse_loss(ddp(random({4, 7}, 100 + seed)), random({4, 3}, 500 + seed)).backward();
    sgd.step();
  }
  auto& own = into[static_cast<std::size_t>(world.rank())];
  for (const auto& parameter : model->parameters()) own.push_back(parameter.detach().clone());
}

class AdapterTraining : public ::testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(AdapterTraining, HasTheBitsOfTheHostBackend) {
  const auto& [text, n] = GetParam();
  const auto strategy = parse_strategy(text);
  Parameters expected(static_cast<std::size_t>(n));
  Parameters got(static_cast<std::size_t>(n));
  on_ranks(n, [&](const Group& world) { train(world, strategy, expected); });
  expect_adapted_ranks(n, [&](const Group& world) { train(world, strategy, got); });
  for (std::size_t rank = 0; rank < got.size(); ++rank) {
    ASSERT_EQ(got[rank].size(), expected[rank].size());
    for (std::size_t i = 0; i < got[rank].size(); ++i) {
      EXPECT_TRUE(at::equal(got[rank][i], expected[rank][i])) << "parameter " << i;
      EXPECT_TRUE(at::equal(got[rank][i], got[0][i])) << "parameter " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, AdapterTraining,
                         ::testing::Combine(::testing::Values("fp32", "fp16", "topk:0.1"),
                                            ::testing::Values(2, 3)));

}  // namespace
}  // namespace lockstep::testing
