#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "lockstep/types.h"

namespace lockstep_torch {

/// How a c10d reduction over tensors of one dtype is computed.
struct Reduction {
  c10d::ReduceOp::RedOpType kind = c10d::ReduceOp::SUM;
  lockstep::DType dtype = lockstep::DType::f32;
  lockstep::ReduceOp op = lockstep::ReduceOp::sum;
  /// The library's kernels lack this reduction: every rank gathers all inputs and calls
  /// reduce_rows().
  bool gathers = false;
};

/// Throws: std::invalid_argument naming the operation if the dtype does not have the reduction.
Reduction reduction_of(const c10d::ReduceOp& op, at::ScalarType type, const char* operation);

/// The contribution of this rank in contiguous memory: complex numbers as pairs of real numbers,
/// and multiplied by the factor of PREMUL_SUM. It is the tensor itself where nothing changes.
at::Tensor contribution(const at::Tensor& tensor, const c10d::ReduceOp& op);

/// The reduction of rows[0], rows[1], … in this order.
at::Tensor reduce_rows(const at::Tensor& rows, c10d::ReduceOp::RedOpType kind);

}  // namespace lockstep_torch
