#pragma once

#include <ATen/core/Dict.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

namespace lockstep::inline v0_2::detail {

enum class FieldFormat : bool {
  python,     ///< of torch.optim: numbers of steps are tensors of float32
  checkpoint  ///< real numbers are tensors of float64, because JSON has no infinity
};

/// The fields of a parameter's state by their names, with the tensors of the state itself. No value
/// for the state of a class that is not known.
std::optional<c10::impl::GenericDict> fields_of(torch::optim::OptimizerParamState& state,
                                                FieldFormat format);

/// The parameter whose state is read, and its names in messages.
struct StatePlace {
  std::size_t group;
  std::size_t index;         ///< within the group
  std::string parameter;     ///< "optimizer: group 0, parameter 1"
  std::string tensors = {};  ///< before the name of a field: "optimizer/weight/"; empty for none
};

/// Reads fields of either format. Copies tensors, to the device of the parameter. options: of the
/// parameter's group, when it has the state. Null for SGD's state without momentum.
/// Throws: CheckpointError naming the field, unless the next step has all that it needs.
std::unique_ptr<torch::optim::OptimizerParamState> read_state(
    const torch::optim::Optimizer& optimizer, const torch::optim::OptimizerOptions& options,
    const c10::impl::GenericDict& fields, const StatePlace& place);

}  // namespace lockstep::detail
