#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <string_view>

#include "lockstep/group.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2::detail {

/// The dtype of collectives for a tensor's dtype. operation: the prefix of the error.
/// Throws: InvalidArgument when collectives do not support it.
DType dtype_of(at::ScalarType type, std::string_view operation);

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
