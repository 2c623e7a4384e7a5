// Ranks with unequal numbers of batches of unequal sizes train as one process does.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "lockstep/distributed_data_parallel.h"
#include "lockstep/distributed_optimizer.h"
#include "lockstep/uneven_inputs.h"
#include "tests/parallel/models.h"

namespace lockstep::testing {
namespace {

using Batch = torch::data::Example<>;

/// Rank r's batches: two on rank 0, then four, two and none in turn, of sizes that differ.
std::vector<Batch> batches_of(int rank) {
  std::vector<Batch> batches;
  const int count = (3 - rank % 3) * 2 % 6 + (rank == 0 ? 2 : 0);
  for (int i = 0; i < count; ++i) {
    const auto seed = static_cast<std::uint64_t>(100 * rank + i);
    const std::int64_t rows = 1 + (rank + 2 * i) % 4;
    batches.emplace_back(Mlp::batch(rows, seed),
                         random({rows, Mlp::outputs}, 50 + seed, at::kDouble));
  }
  return batches;
}

/// At each step the rows that some rank has.
std::vector<Batch> whole_batches(int ranks) {
  std::vector<Batch> whole;
  for (std::size_t step = 0;; ++step) {
    std::vector<at::Tensor> data;
    std::vector<at::Tensor> target;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto own = batches_of(rank);
      if (step >= own.size()) continue;
      data.push_back(own[step].data);
      target.push_back(own[step].target);
    }
    if (data.empty()) return whole;
    whole.emplace_back(torch::cat(data), torch::cat(target));
  }
}

std::shared_ptr<Mlp> make_model() {
  auto model = std::make_shared<Mlp>();
  model->to(at::kDouble);
  set_values(*model, 3);
  return model;
}

torch::optim::SGD make_sgd(const Mlp& model) {
  return torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
}

class UnequalTraining : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, UnequalTraining, ::testing::Values(1, 2, 3, 4, 7));

TEST_P(UnequalTraining, EqualsOneProcessWithAllRows) {
  const int ranks = GetParam();
  std::vector<at::Tensor> expected;
  on_ranks(1, [&](const Group&) {
    auto model = make_model();
    auto sgd = make_sgd(*model);
    for (const Batch& batch : whole_batches(ranks)) {
      sgd.zero_grad();
      torch::mse_loss(model->forward(batch.data), batch.target).backward();
      sgd.step();
    }
    for (const auto& parameter : model->parameters()) expected.push_back(parameter.detach());
  });
  on_ranks(ranks, [&](const Group& world) {
    auto model = make_model();
    auto sgd = make_sgd(*model);
    DistributedOptimizer optimizer(sgd, *model, world);
    const auto loader = batches_of(world.rank());
    for (const auto& batch : join_uneven(loader, world, until_last)) {
      optimizer.weight(batch ? static_cast<double>(batch->data.size(0)) : 0);
      optimizer.backward_and_update(
          batch ? torch::mse_loss(model->forward(batch->data), batch->target) : at::Tensor());
    }
    const auto parameters = model->parameters();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_LT(distance(parameters[i].detach(), expected[i]), 1e-12)
          << "parameter " << i << " of rank " << world.rank() << " of " << ranks;
      EXPECT_GT(distance(make_model()->parameters()[i].detach(), expected[i]), 1e-4);
    }
  });
}

}  // namespace
}  // namespace lockstep::testing
