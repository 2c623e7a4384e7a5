#include "group/tensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/operation_error.h"
#include "core/text.h"
#include "device/device_communicator.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The history of a tensor that an operation writes: reading the tensor is allowed, a backward
/// through it is an error.
class Written : public torch::autograd::Function<Written> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor,
                            const at::Tensor& /*always_recorded*/, const Group& group,
                            const char* operation) {
    context->mark_dirty({tensor});
    context->saved_data["operation"] = std::string(operation);
    context->saved_data["rank"] = group.rank();
    context->saved_data["size"] = group.size();
    return tensor;
  }

  static variable_list backward(AutogradContext* context, const variable_list& /*gradients*/) {
    const auto& operation = context->saved_data["operation"].toStringRef();
    throw InvalidArgument(
        concat(operation, " rank ", context->saved_data["rank"].toInt(), " of ",
               context->saved_data["size"].toInt(),
               ": got a backward through a tensor that it has written, expected none, because "
               "collectives of Group are not part of a graph: call the differentiable form, such "
               "as differentiable::all_reduce(tensor, group), or pass tensor.detach().clone()"),
        {.operation = operation});
  }
};

bool requires_own_gradient(const at::Tensor& tensor) {
  return tensor.requires_grad() && tensor.is_leaf();
}

bool is_of_leaf(const at::Tensor& tensor) {
  return requires_own_gradient(tensor) ||
         (tensor.is_view() && requires_own_gradient(at::Tensor(tensor._base())));
}

}  // namespace

at::Tensor always_recorded() { return at::empty({0}).requires_grad_(); }

void mark_written(const Group& group, const at::Tensor& tensor, const at::Tensor& input,
                  const char* operation) {
  if (tensor.is_inference()) return;  // has no version, and no graph can save it
  const bool is_in_place = tensor.is_same(input);
  const bool needs_gradient =
      tensor.requires_grad() || (!is_in_place && input.defined() && input.requires_grad());
  if (!needs_gradient || !at::GradMode::is_enabled() || is_of_leaf(tensor)) {
    tensor.unsafeGetTensorImpl()->bump_version();
    return;
  }
  // The history refers neither to the input's graph nor to the output's earlier history. Otherwise
  // an output that is written at every step would keep the graphs of all steps.
  if (!is_in_place && tensor.requires_grad() && !tensor.is_view()) tensor.detach_();
  try {
    Written::apply(tensor, always_recorded(), group, operation);
  } catch (const c10::Error& error) {
    throw_invalid(operation, "got a tensor that LibTorch does not let an operation change: ",
                  error.what_without_backtrace());
  }
}

DType dtype_of(at::ScalarType type, std::string_view where) {
  const auto found = std::ranges::find(device::scalar_types, type);
  if (found != device::scalar_types.end()) {
    return static_cast<DType>(found - device::scalar_types.begin());
  }
  refuse_tensor(where, "got a tensor of ", toString(type),
                ", expected Float, Double, Half, BFloat16, Char, Byte, Short, Int, Long or Bool");
}

}  // namespace lockstep::detail
