#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <string>
#include <type_traits>
#include <utility>

namespace lockstep::inline v0_2::detail {

/// A parameter's name by its TensorImpl, which is what an optimizer knows it by.
using ParameterNames = std::map<const void*, std::string>;

/// State of an optimizer of any kind, in a form that outlives the process.
struct OptimizerState {
  std::string description;  ///< JSON: kind, groups with their options, what is no tensor
  std::map<std::string, at::Tensor> tensors;  ///< under "optimizer/<parameter>/<field>"
};

inline constexpr const char* optimizer_prefix = "optimizer/";

/// Throws: CheckpointError for a parameter that has no name, or an optimizer that keeps something
/// unknown.
OptimizerState optimizer_state(const torch::optim::Optimizer& optimizer,
                               const ParameterNames& names);

/// Names of the tensors that an optimizer adds to its state in its first step, each with the
/// parameter whose sizes and dtype it will have. Empty for optimizers that are not known here.
/// Throws: CheckpointError for a parameter that has no name.
std::map<std::string, at::Tensor> memory_to_come(const torch::optim::Optimizer& optimizer,
                                                 const ParameterNames& names);

/// A state that an optimizer has taken on trial, ready to become its own.
class PreparedOptimizer {
 public:
  /// Cannot fail. The optimizer must be the one that was prepared.
  void apply(torch::optim::Optimizer& optimizer);

 private:
  using Memory = std::remove_cvref_t<decltype(std::declval<torch::optim::Optimizer>().state())>;

  friend PreparedOptimizer prepare_optimizer(const OptimizerState& state,
                                             torch::optim::Optimizer& optimizer,
                                             const ParameterNames& names);
  Memory memory_;
  std::string options_;  ///< an archive without memory
};

/// Compares kind, groups, parameters, options, shapes and dtypes with the optimizer's, and lets it
/// read all of the state; it is left as it was.
/// Throws: CheckpointError saying what differs.
PreparedOptimizer prepare_optimizer(const OptimizerState& state, torch::optim::Optimizer& optimizer,
                                    const ParameterNames& names);

}  // namespace lockstep::detail
