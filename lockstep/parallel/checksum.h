#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep::detail {

/// A digest of a tensor's elements as they lie in memory: tensors of the same sizes, strides and
/// values have the same. What lies between the elements is not the tensor's and does not count.
std::uint64_t checksum(const at::Tensor& tensor);

}  // namespace lockstep::detail
