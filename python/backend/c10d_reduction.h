#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "lockstep/types.h"

namespace lockstep_torch {

/// A c10d reduction over tensors of one dtype. Complex numbers are pairs of real numbers.
struct Reduction {
  lockstep::DType dtype;
  lockstep::Reduction reduction;
};

/// Throws: std::invalid_argument naming the operation if the dtype does not have the reduction.
Reduction reduction_of(const c10d::ReduceOp& op, at::ScalarType type, const char* operation);

/// The tensor in contiguous memory, complex numbers as pairs of real numbers. It shares the
/// tensor's memory if that is contiguous.
at::Tensor contiguous_reals(const at::Tensor& tensor);

/// Copies what contiguous_reals() returned, or other memory of its size, to the tensor, unless it
/// is the tensor's memory.
void copy_reals(const at::Tensor& reals, const at::Tensor& tensor);

}  // namespace lockstep_torch
