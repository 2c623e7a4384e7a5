#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <string>
#include <vector>

#include "lockstep/model_view.h"
#include "parallel/update/sharded_parameters.h"

namespace lockstep::inline v0_2::detail {

/// Serialized state of an optimizer of any class.
struct OptimizerState {
  std::string description;  ///< JSON: class, options of groups, values that are no tensors
  std::map<std::string, at::Tensor> tensors;  ///< names: "optimizer/<parameter>/<field>"
};

inline constexpr const char* optimizer_prefix = "optimizer/";

// The model of the following functions has the optimizer's parameters, and gives their names. They
// throw CheckpointError for a parameter that the model lacks, and InvalidArgument for one that the
// optimizer has twice.

/// Throws: CheckpointError for a value that cannot be stored.
OptimizerState optimizer_state(const torch::optim::Optimizer& optimizer, const ModelView& model);

/// The tensors that an optimizer will add to its state in its first step: names, and for each a
/// tensor of its sizes and dtype, maybe without memory. Empty for classes that are not known here.
std::map<std::string, at::Tensor> future_state(const torch::optim::Optimizer& optimizer,
                                               const ModelView& model);

/// A state that an optimizer has parsed successfully and that apply() can install.
struct PreparedOptimizer {
  ParamStates state;
  std::vector<std::string> options;  ///< an archive for each parameter group

  /// Does not throw. The optimizer must be the one that was prepared.
  void apply(torch::optim::Optimizer& optimizer);
};

/// Compares class, groups, parameters, options, shapes and dtypes with the optimizer's, and lets it
/// parse the whole state. Does not change the optimizer.
/// Throws: CheckpointError with the first difference.
PreparedOptimizer prepare_optimizer(const OptimizerState& state, torch::optim::Optimizer& optimizer,
                                    const ModelView& model);

}  // namespace lockstep::detail
