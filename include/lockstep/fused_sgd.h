#pragma once

#include <torch/optim/sgd.h>

#include <cstddef>
#include <unordered_map>

#include "lockstep/distributed_optimizer.h"

namespace lockstep::inline v0_2 {

/// torch::optim::SGD whose step reads and writes each parameter once, with the kernel of PyTorch's
/// `SGD(…, fused=True)`. Options, state and checkpoints are those of SGD; results differ by
/// rounding only. Ranks can share its update (DataParallelOptions::share_memory). If the kernel
/// does not support a parameter or its gradient (sparse, not dense in memory, different strides,
/// not on the CPU), the step is that of SGD.
class FusedSgd : public torch::optim::SGD, public ElementwiseOptimizer {
 public:
  using torch::optim::SGD::SGD;

  at::Tensor step(LossClosure closure = nullptr) override;

  bool has(const at::Tensor& parameter) const override;
  at::Tensor* memory_of(const at::Tensor& parameter) override;
  void update(const at::Tensor& parameter, const Elements& elements) override;

 private:
  bool fits() const;
  const torch::optim::SGDOptions* options_of(const at::Tensor& parameter) const;
  torch::optim::SGDParamState& state_of(const at::Tensor& parameter);
  void step_group(torch::optim::OptimizerParamGroup& group);

  struct Place {
    std::size_t group = 0;  ///< in param_groups()
    std::size_t index = 0;  ///< in the group's params()
  };
  /// Cache of the parameters' places: without it, a step would take quadratic time in their number.
  mutable std::unordered_map<const void*, Place> places_;
};

}  // namespace lockstep
