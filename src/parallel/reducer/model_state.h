#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "lockstep/group.h"
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
  /// The same for buffers, of a model whose forward can put other tensors in their places.
  virtual void for_each_assigned_buffer(c10::function_ref<void(const at::Tensor&)> /*fn*/) const {}

  /// Adds the weights of the layers that are set to give sparse gradients.
  virtual void add_sparse(std::unordered_set<const void*>& /*parameters*/) const {}
};

/// Parameters, then buffers.
std::vector<NamedTensor> tensors_of(const ModelView& model);

/// A model's tensors in order of registration. A tensor with several names is listed once, under
/// the first.
struct ModelState {
  explicit ModelState(const ModelView& model);

  /// Declares parameters whose gradients are sparse, beside those of Embedding and EmbeddingBag
  /// with sparse = true.
  /// Throws: InvalidArgument for a name that is not a parameter's.
  void declare_sparse(const std::vector<std::string>& names);
  /// Moves the parameters that an optimizer does not update to `others`.
  void keep_optimized(const IsOptimized& is_optimized);
  bool has_sparse_gradient(const at::Tensor& parameter) const {
    return sparse.contains(parameter.unsafeGetTensorImpl());
  }

  ModelView view;
  std::vector<NamedTensor> parameters;
  std::vector<NamedTensor> buffers;
  /// Parameters that ranks compare and copy at the construction of a wrapper, and that other
  /// wrappers synchronise (DataParallelOptions::optimized_only).
  std::vector<NamedTensor> others = {};
  std::unordered_set<const void*> sparse;  ///< parameters with sparse gradients
};

/// One line per tensor, for a comparison between ranks. with_values adds a checksum.
std::vector<std::string> describe(const ModelState& state, bool with_values);

/// broadcast_parameters() without the comparison of models.
void broadcast(const ModelState& state, const Group& group, int root);

enum class GradientLayout : bool { dense, sparse };

/// The parameters that require a gradient and have gradients of this layout, by default of any.
std::vector<NamedTensor> trainable(const ModelState& model,
                                   std::optional<GradientLayout> layout = {});

/// Throws: InvalidArgument when the model has no trainable parameter, or a tensor that cannot be
/// averaged or broadcast.
void check_trainable(const ModelState& model, const Group& group);

}  // namespace lockstep::detail
