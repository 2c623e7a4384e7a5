#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/model_files.h"
#include "lockstep/model_view.h"

namespace lockstep::inline v0_2::detail {

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

}  // namespace lockstep::detail
