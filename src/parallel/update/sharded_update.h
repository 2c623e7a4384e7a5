#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "lockstep/distributed_optimizer.h"
#include "lockstep/group.h"
#include "parallel/reducer/reducer.h"
#include "parallel/update/own_step.h"
#include "parallel/update/sharded_parameters.h"
#include "parallel/update/update.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep::inline v0_2::detail {

/// The update of DataParallelOptions::shard. During step(), the optimizer's parameters are the
/// parts of the buckets that this rank updates, so it keeps state for these parts only. The ranks
/// gather each bucket's parameters while the optimizer updates the next one.
class ShardedUpdate final : public Update {
 public:
  /// Moves the parameters into flat tensors. Reducer and optimizer must outlive it.
  /// Throws: CommError when memory is short.
  ShardedUpdate(Reducer& reducer, const Group& group, torch::optim::Optimizer& optimizer);
  ~ShardedUpdate() override;

  Product product() const override { return Product::part; }
  using Update::step;
  /// Throws: InvalidArgument when the optimizer's parameters are not those of the constructor.
  void step(UpdateGradients gradients) override;

 private:
  /// One call of the optimizer's step, for the parameters of one bucket.
  struct Call {
    ParameterLists parts;             ///< what the optimizer updates
    std::vector<std::size_t> slices;  ///< of the bucket, that the optimizer has
  };

  void set_parts(const std::vector<ElementwiseOptimizer::Part>& parts);
  void check_groups() const;
  bool set_gradients(std::size_t bucket);
  void finish(std::size_t bucket);

  torch::optim::Optimizer& optimizer_;
  Reducer& reducer_;
  ShardedParameters parameters_;
  ParameterLists original_;  ///< the optimizer's parameters at construction
  std::vector<Call> calls_;  ///< per bucket
  ParameterLists whole_;     ///< parameters in no bucket, which every rank updates
};

}  // namespace lockstep::detail
