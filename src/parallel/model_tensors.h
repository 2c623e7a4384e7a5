#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <unordered_set>
#include <vector>

#include "lockstep/model_view.h"

namespace lockstep::inline v0_2::detail {

/// The model of a ModelView. Each kind of model has an implementation.
class ModelTensors {
 public:
  virtual ~ModelTensors() = default;

  virtual std::vector<NamedTensor> parameters() const = 0;
  virtual std::vector<NamedTensor> buffers() const = 0;

  /// Calls fn with each parameter that the model has now, in the order of parameters(). Builds no
  /// names, which would take most of the time.
  virtual void for_each_parameter(c10::function_ref<void(const at::Tensor&)> fn) const = 0;

  /// Adds the weights of the layers that are set to give sparse gradients.
  virtual void add_sparse(std::unordered_set<const void*>& /*parameters*/) const {}
};

/// Parameters, then buffers.
std::vector<NamedTensor> tensors_of(const ModelView& model);

}  // namespace lockstep::detail
