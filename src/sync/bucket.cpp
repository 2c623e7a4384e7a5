#include <ATen/ops/empty.h>
#include <c10/util/strides.h>

#include <cstdint>
#include <utility>

#include "lockstep/exchange.h"

namespace lockstep::inline v0_2 {

at::Tensor detail::alias(const at::Tensor& flat, std::size_t offset, const at::Tensor& parameter) {
  const c10::DimVector strides = parameter.is_non_overlapping_and_dense()
                                     ? c10::DimVector(parameter.strides())
                                     : c10::contiguous_strides(parameter.sizes());
  auto values = at::empty({0}, flat.options());
  values.set_(flat.storage(), static_cast<std::int64_t>(offset), parameter.sizes(), strides);
  return values;
}

Bucket::Bucket(std::size_t index, std::size_t numel, at::ScalarType dtype,
               std::vector<Slice> slices, const Group& group)
    : group_(group),
      index_(index),
      values_(group.empty({static_cast<std::int64_t>(numel)}, dtype)),
      slices_(std::move(slices)) {
  values_.zero_();
  for (auto& slice : slices_) slice.values = detail::alias(values_, slice.offset, slice.parameter);
}

}  // namespace lockstep
