#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep::inline v0_2::detail {

/// A digest of a tensor's elements as they lie in memory: tensors of the same sizes, strides and
/// values have the same. Bytes between the elements do not count.
std::uint64_t checksum(const at::Tensor& tensor);

}  // namespace lockstep::detail
