#include "parallel/update/update.h"

#include <torch/optim/optimizer.h>

#include "parallel/update/own_step.h"
#include "parallel/update/sharded_update.h"
#include "parallel/update/shared_update.h"

namespace lockstep::inline v0_2::detail {
namespace {

/// The optimizer's own step, on every rank.
class WholeUpdate final : public Update {
 public:
  WholeUpdate(torch::optim::Optimizer& optimizer, Reducer& reducer)
      : optimizer_(optimizer), reducer_(reducer) {}

  void step(UpdateGradients /*gradients*/) override {
    reducer_.before_update();
    optimizer_.step();
  }
  at::Tensor step(const std::function<at::Tensor()>& evaluate) override {
    return optimizer_.step(evaluate);
  }

 private:
  torch::optim::Optimizer& optimizer_;
  Reducer& reducer_;
};

}  // namespace

void Update::check(const torch::optim::Optimizer& optimizer, const DataParallelOptions& options) {
  if (options.share_memory) {
    SharedUpdate::check(optimizer);
  } else if (options.shard != Shard::none) {
    check_elementwise(optimizer, "shard");
  }
}

std::unique_ptr<Update> Update::create(torch::optim::Optimizer& optimizer, Reducer& reducer,
                                       const Group& group, const DataParallelOptions& options) {
  // With one copy of everything, shard has no effect.
  if (options.share_memory) return std::make_unique<SharedUpdate>(reducer, group, optimizer);
  if (options.shard != Shard::none)
    return std::make_unique<ShardedUpdate>(reducer, group, optimizer);
  return std::make_unique<WholeUpdate>(optimizer, reducer);
}

at::Tensor Update::step(const std::function<at::Tensor()>& evaluate) {
  auto loss = evaluate();
  step(UpdateGradients::averaged);
  return loss;
}

}  // namespace lockstep::detail
