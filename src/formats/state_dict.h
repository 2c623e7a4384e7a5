#pragma once

#include <ATen/core/Dict.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/text.h"
#include "lockstep/error.h"
#include "lockstep/model_files.h"
#include "lockstep/model_view.h"

namespace lockstep::inline v0_2::detail {

/// Runs fn. An error of LibTorch becomes a CheckpointError, whose text begins with where.
template <class Function>
auto as_checkpoint_error(std::string_view where, const Function& fn) {
  try {
    return fn();
  } catch (const c10::Error& error) {
    throw CheckpointError(concat(where, ": ", error.what_without_backtrace()));
  }
}

/// Runs fn. Adds the name of the file to its CheckpointError. An error of LibTorch becomes one.
template <class Function>
auto with_file_name(const std::filesystem::path& path, const Function& fn) {
  try {
    return as_checkpoint_error("LibTorch", fn);
  } catch (const CheckpointError& error) {
    throw CheckpointError(concat(path.string(), ": ", error.what()),
                          {.rank = error.rank(),
                           .operation = error.operation(),
                           .cause = error.cause(),
                           .cause_kind = error.cause_kind()});
  }
}

inline c10::impl::GenericDict empty_dict() {
  return c10::impl::GenericDict(c10::AnyType::get(), c10::AnyType::get());
}

/// Throws: CheckpointError if no values can be copied into this tensor of a model.
void check_loadable(const std::string& name, const at::Tensor& tensor);

/// Values for a model's parameters and buffers, checked before the first is changed.
class ModelCopies {
 public:
  ModelCopies() = default;
  /// stored: by the model's names. A tensor with several names needs values under one of them.
  /// Throws: CheckpointError naming the tensor whose values do not fit, or that has other values
  /// under a second name.
  ModelCopies(const ModelView& model, const std::map<std::string, c10::IValue>& stored,
              bool convert_dtypes);

  const NotLoaded& not_loaded() const { return not_loaded_; }
  /// Does not throw.
  void apply() const;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  ///< to, from
  NotLoaded not_loaded_;
};

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
