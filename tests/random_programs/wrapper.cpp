#include "tests/random_programs/wrapper.h"

#include <utility>

#include "lockstep/distributed_data_parallel.h"
#include "lockstep/fused_optimizers.h"
#include "lockstep/strategy.h"
#include "tests/random_programs/model.h"

namespace lockstep::random_programs {
namespace {

template <Output output>
class DataParallelWrapper final : public Wrapper {
 public:
  DataParallelWrapper(const Rank::Holding& holding, const Group& group,
                      const DataParallelOptions& options)
      : ddp_(std::dynamic_pointer_cast<Returning<output>>(holding.model), group, options) {}

  at::Tensor forward(const at::Tensor& x, Mask layers) override {
    return tensor_in(ddp_(x, layers));
  }
  NoSync no_sync() const override { return ddp_.no_sync(); }
  void weight(double samples) override { ddp_.weight(samples); }
  Stateful stateful() override { return ddp_; }

 private:
  DistributedDataParallel<Returning<output>> ddp_;
};

class OptimizerWrapper final : public Wrapper {
 public:
  OptimizerWrapper(const Rank::Holding& holding, const Group& group,
                   const DataParallelOptions& options)
      : model_(holding.model), optimizer_(*holding.optimizer, *holding.model, group, options) {}

  at::Tensor forward(const at::Tensor& x, Mask layers) override {
    return model_->compute(x, layers);
  }
  NoSync no_sync() const override { return optimizer_.no_sync(); }
  void weight(double samples) override { optimizer_.weight(samples); }
  Stateful stateful() override { return optimizer_; }
  DistributedOptimizer* optimizer() override { return &optimizer_; }

 private:
  std::shared_ptr<Model> model_;
  DistributedOptimizer optimizer_;
};

}  // namespace

bool is_shared(const Unit& unit, const Group& group) {
  return unit.shared && group.device().is_cpu();
}

std::unique_ptr<Wrapper> wrap(const Unit& unit, const Rank::Holding& holding, const Group& group) {
  DataParallelOptions options;
  options.strategy = parse_strategy(unit.synchronisation.text());
  options.verify_every = unit.verify_every;
  options.check_finite = unit.check_finite;
  options.share_memory = is_shared(unit, group);
  if (unit.sharded && group.device().is_cpu()) options.shard = Shard::optimizer;
  if (unit.bucket_each) options.buckets = {.first = 0, .rest = 0};
  if (unit.buffers == Buffers::average) options.buffer_policy = BufferPolicy::average;
  if (unit.buffers == Buffers::own) options.buffer_policy = BufferPolicy::none;
  if (unit.front_end == FrontEnd::optimizer) {
    return std::make_unique<OptimizerWrapper>(holding, group, options);
  }
  return for_output(unit.output, [&]<Output output>() -> std::unique_ptr<Wrapper> {
    return std::make_unique<DataParallelWrapper<output>>(holding, group, options);
  });
}

void fuse(std::unique_ptr<torch::optim::Optimizer>& optimizer) {
  const auto& defaults = optimizer->defaults();
  const auto parameters = optimizer->param_groups()[0].params();
  if (const auto* sgd = dynamic_cast<const torch::optim::SGDOptions*>(&defaults)) {
    optimizer = std::make_unique<FusedSgd>(parameters, *sgd);
  } else {
    const auto& adam = dynamic_cast<const torch::optim::AdamOptions&>(defaults);
    optimizer = std::make_unique<FusedAdam>(parameters, adam);
  }
}

}  // namespace lockstep::random_programs
