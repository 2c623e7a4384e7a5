#include "parallel/tensor_checksum.h"

#include <cstddef>

#include "core/digest.h"

namespace lockstep::inline v0_2::detail {

std::uint64_t checksum(const at::Tensor& tensor) {
  const auto values = tensor.detach();
  const auto dense = values.is_non_overlapping_and_dense() ? values : values.contiguous();
  return digest({static_cast<const std::byte*>(dense.data_ptr()), dense.nbytes()});
}

}  // namespace lockstep::detail
