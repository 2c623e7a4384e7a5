#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cstddef>
#include <unordered_map>
#include <vector>

#include "lockstep/distributed_optimizer.h"

namespace lockstep::inline v0_2 {

/// An optimizer of LibTorch whose step reads and writes each parameter and its state once, with the
/// kernel of PyTorch's `fused=True`. Options, state and checkpoints are those of Base; results
/// differ by rounding only. Ranks can share its update (DataParallelOptions::share_memory). If the
/// kernel does not support a parameter or its gradient (sparse, not dense in memory, different
/// strides, not on the CPU), the step is that of Base.
template <class Base>
class FusedOptimizer : public Base, public ElementwiseOptimizer {
 public:
  using Base::Base;

  at::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr) override;

  bool has(const at::Tensor& parameter) const override;
  std::vector<at::Tensor*> state_of(const at::Tensor& parameter) override;
  void begin_update(const at::Tensor& parameter) override;
  void update(const at::Tensor& parameter, const Elements& elements) override;

 private:
  bool fits() const;
  const torch::optim::OptimizerOptions* options_of(const at::Tensor& parameter) const;
  torch::optim::OptimizerParamState& entry_of(const at::Tensor& parameter);
  std::vector<at::Tensor*> tensors_of(const at::Tensor& parameter,
                                      const torch::optim::OptimizerOptions& options);
  void add_step(const at::Tensor& parameter, std::vector<at::Tensor>& steps);
  void step_group(torch::optim::OptimizerParamGroup& group);
  void remove_empty_state();

  struct Place {
    std::size_t group = 0;  ///< in param_groups()
    std::size_t index = 0;  ///< in the group's params()
  };
  /// Cache of the parameters' places: without it, a step would take quadratic time in their number.
  mutable std::unordered_map<const void*, Place> places_;
};

using FusedSgd = FusedOptimizer<torch::optim::SGD>;
using FusedAdam = FusedOptimizer<torch::optim::Adam>;
using FusedAdamW = FusedOptimizer<torch::optim::AdamW>;

extern template class FusedOptimizer<torch::optim::SGD>;
extern template class FusedOptimizer<torch::optim::Adam>;
extern template class FusedOptimizer<torch::optim::AdamW>;

}  // namespace lockstep
