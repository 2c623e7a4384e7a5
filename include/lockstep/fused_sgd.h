#pragma once

#include <torch/optim/sgd.h>

#include <cstddef>
#include <unordered_map>

#include "lockstep/distributed_optimizer.h"

namespace lockstep::inline v0_2 {

/// torch::optim::SGD whose step reads and writes each parameter once, by the kernel that PyTorch's
/// `SGD(…, fused=True)` uses. The same options, state and checkpoints as SGD; results differ by
/// rounding only. Ranks can share its update (DataParallelOptions::share_memory).
/// Parameters or gradients that the kernel cannot take (sparse, with holes, of unlike strides) are
/// stepped as SGD does.
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
  /// Where parameters were found last; a search through all of them would take their square a step.
  mutable std::unordered_map<const void*, Place> places_;
};

}  // namespace lockstep
