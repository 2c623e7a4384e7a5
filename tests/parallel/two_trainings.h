#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/distributed_optimizer.h"
#include "lockstep/strategy.h"
#include "tests/parallel/models.h"

namespace lockstep::testing {

/// Two models with the same values, of which the first has its update sharded or shared.
struct TwoTrainings {
  explicit TwoTrainings(const Group& world,
                        const DataParallelOptions& how = {.shard = Shard::gradients},
                        at::ScalarType dtype = at::kFloat,
                        std::vector<std::int64_t> widths = {7, 61, 33, 3})
      : parts(widths), whole(widths) {
    for (auto* model : {&parts, &whole}) {
      model->to(dtype);
      set_values(*model, 1);
    }
    adam =
        std::make_unique<torch::optim::Adam>(parts.parameters(), torch::optim::AdamOptions(0.01));
    adam_of_whole =
        std::make_unique<torch::optim::Adam>(whole.parameters(), torch::optim::AdamOptions(0.01));
    in_parts = std::make_unique<DistributedOptimizer>(*adam, parts, world, how);
    auto unsharded = how;
    unsharded.shard = Shard::none;
    unsharded.share_memory = false;
    in_whole = std::make_unique<DistributedOptimizer>(*adam_of_whole, whole, world, unsharded);
  }

  static at::Tensor loss(Mlp& model, const Group& world, int step) {
    const auto dtype = model.parameters()[0].scalar_type();
    const auto seed = static_cast<std::uint64_t>(100 * step + world.rank());
    return model.forward(random({4, 7}, seed, dtype)).square().mean();
  }
  void backward(const Group& world, int step) {
    loss(parts, world, step).backward();
    loss(whole, world, step).backward();
  }
  void update(const Group& world, int step) {
    in_parts->backward_and_update(loss(parts, world, step));
    in_whole->backward_and_update(loss(whole, world, step));
  }
  void finish() {
    for (auto* optimizer : {in_parts.get(), in_whole.get()}) {
      optimizer->step();
      optimizer->zero_grad();
    }
  }

  Mlp parts;
  Mlp whole;
  std::unique_ptr<torch::optim::Adam> adam;
  std::unique_ptr<torch::optim::Adam> adam_of_whole;
  std::unique_ptr<DistributedOptimizer> in_parts;
  std::unique_ptr<DistributedOptimizer> in_whole;
};

/// Five steps of a strategy that averages every gradient.
inline void expect_equal_trainings(const Group& world, const char* strategy, Shard shard) {
  SCOPED_TRACE(strategy);
  TwoTrainings pair(world, {.strategy = parse_strategy(strategy), .shard = shard});
  for (int step = 0; step < 5; ++step) pair.update(world, step);
  expect_equal_models(pair.parts, pair.whole);
}

}  // namespace lockstep::testing
