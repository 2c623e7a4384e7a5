#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <string>
#include <type_traits>
#include <utility>

namespace lockstep::inline v0_2::detail {

/// Parameter names by TensorImpl, the key of an optimizer's state.
using ParameterNames = std::map<const void*, std::string>;

/// Serialized state of an optimizer of any class.
struct OptimizerState {
  std::string description;  ///< JSON: class, options of groups, values that are no tensors
  std::map<std::string, at::Tensor> tensors;  ///< names: "optimizer/<parameter>/<field>"
};

inline constexpr const char* optimizer_prefix = "optimizer/";

/// Throws: CheckpointError for a parameter without a name, or for a value that cannot be stored.
OptimizerState optimizer_state(const torch::optim::Optimizer& optimizer,
                               const ParameterNames& names);

/// The tensors that an optimizer will add to its state in its first step: names, and for each a
/// tensor of its sizes and dtype, maybe without memory. Empty for classes that are not known here.
/// Throws: CheckpointError for a parameter without a name.
std::map<std::string, at::Tensor> future_state(const torch::optim::Optimizer& optimizer,
                                               const ParameterNames& names);

/// A state that an optimizer has parsed successfully and that apply() can install.
class PreparedOptimizer {
 public:
  /// Does not throw. The optimizer must be the one that was prepared.
  void apply(torch::optim::Optimizer& optimizer);

 private:
  using ParamStates =
      std::remove_cvref_t<decltype(std::declval<torch::optim::Optimizer>().state())>;

  friend PreparedOptimizer prepare_optimizer(const OptimizerState& state,
                                             torch::optim::Optimizer& optimizer,
                                             const ParameterNames& names);
  ParamStates state_;
  std::string options_;  ///< an archive without state
};

/// Compares class, groups, parameters, options, shapes and dtypes with the optimizer's, and lets it
/// parse the whole state. Does not change the optimizer.
/// Throws: CheckpointError with the first difference.
PreparedOptimizer prepare_optimizer(const OptimizerState& state, torch::optim::Optimizer& optimizer,
                                    const ParameterNames& names);

}  // namespace lockstep::detail
