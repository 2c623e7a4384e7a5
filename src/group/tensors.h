#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <string>
#include <string_view>

#include "core/text.h"
#include "lockstep/error.h"
#include "lockstep/group.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2::detail {

/// Whether the memory of a dense tensor has its values. A lazy negative has them with the other
/// sign, and a zero of LibTorch's _efficientzerotensor() has no memory.
inline bool has_values_in_memory(const at::Tensor& tensor) {
  return !tensor.is_neg() && !tensor._is_zerotensor();
}

/// The text of an error about a tensor for which has_values_in_memory() is false.
inline std::string without_values(const at::Tensor& tensor) {
  return concat("got a ", tensor.is_neg() ? "negated view" : "zero without memory",
                ", expected values in memory: use its clone()");
}

/// Throws an InvalidArgument. where: the operation, or the operation and one of its tensors, such
/// as "all_gather input".
template <class... What>
[[noreturn]] void refuse_tensor(std::string_view where, const What&... what) {
  throw InvalidArgument(concat(where, ": ", what...),
                        {.operation = std::string(where.substr(0, where.find(' ')))});
}

/// The dtype of collectives for a tensor's dtype. where: as of refuse_tensor().
/// Throws: InvalidArgument when collectives do not support it.
DType dtype_of(at::ScalarType type, std::string_view where);

/// A tensor without elements that requires a gradient. With grad mode on, autograd records a
/// Function that gets it, whatever the other inputs are.
at::Tensor always_recorded();

/// Tells autograd that an operation of the group is to write the tensor. Increments its version, so
/// that a graph that has saved it raises LibTorch's in-place error. With grad mode on, a backward
/// through the tensor raises InvalidArgument if it is in a graph, or if input requires a gradient.
/// A leaf that requires a gradient, such as a parameter, stays a leaf.
/// input: what the operation reads; tensor itself for an operation in place.
/// Throws: InvalidArgument for a view that LibTorch lets no operation change in place.
void mark_written(const Group& group, const at::Tensor& tensor, const at::Tensor& input,
                  const char* operation);

}  // namespace lockstep::detail
