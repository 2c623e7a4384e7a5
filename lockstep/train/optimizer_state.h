#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace torch::optim {
class Optimizer;
}

namespace lockstep::detail {

/// A parameter's name by its TensorImpl, which is what an optimizer knows it by.
using ParameterNames = std::map<const void*, std::string>;

/// What an optimizer of any kind remembers, in a form that outlives the process.
struct OptimizerState {
  std::string description;  ///< JSON: kind, groups with their options, what is no tensor
  std::map<std::string, at::Tensor> tensors;  ///< under "optimizer/<parameter>/<field>"
};

inline constexpr const char* optimizer_prefix = "optimizer/";

/// Throws: CheckpointError for a parameter that has no name, or an optimizer that keeps something
/// unknown.
OptimizerState optimizer_state(const torch::optim::Optimizer& optimizer,
                               const ParameterNames& names);

/// Compares kind, groups, parameters, shapes and dtypes with the optimizer's.
/// Throws: CheckpointError saying what differs.
void check_optimizer_state(const OptimizerState& state, const torch::optim::Optimizer& optimizer,
                           const ParameterNames& names);

/// Puts a checked state in place of the optimizer's own.
/// Throws: CheckpointError, leaving the optimizer as it was.
void restore_optimizer_state(const OptimizerState& state, torch::optim::Optimizer& optimizer,
                             const ParameterNames& names);

}  // namespace lockstep::detail
