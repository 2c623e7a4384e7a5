#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "lockstep/distributed_optimizer.h"

namespace lockstep::inline v0_2::detail {

/// An optimizer of torch::optim as an ElementwiseOptimizer. update() runs the optimizer's own step
/// on the elements; the optimizer has the state of whole parameters.
class ElementwiseStep final : public ElementwiseOptimizer {
 public:
  /// check_elementwise() must accept the optimizer, which must outlive this object.
  explicit ElementwiseStep(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {}

  bool has(const at::Tensor& parameter) const override;
  /// Of a parameter without state, the tensors that begin_update() adds to the optimizer's state.
  std::vector<at::Tensor*> state_of(const at::Tensor& parameter) override;
  void begin_update(const at::Tensor& parameter) override;
  void update(const at::Tensor& parameter, const Elements& elements) override;

 private:
  using ParamState = torch::optim::OptimizerParamState;

  std::optional<std::size_t> group_of(const at::Tensor& parameter) const;
  ParamState* find(const at::Tensor& parameter) const;
  std::unique_ptr<ParamState> take(const at::Tensor& tensor);
  std::unique_ptr<ParamState> first_state(const at::Tensor& parameter);
  void step_on(const at::Tensor& parameter, const at::Tensor& elements, const at::Tensor& gradient);

  torch::optim::Optimizer& optimizer_;
  /// States of parameters whose first update has not begun.
  std::unordered_map<const void*, std::unique_ptr<ParamState>> first_states_;
  mutable std::unordered_map<const void*, std::size_t> groups_;  ///< by parameter
  mutable std::size_t counted_ = 0;                              ///< parameters in groups_
};

}  // namespace lockstep::detail
