#include "lockstep/parallel/gradient_record.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "lockstep/core/digest.h"
#include "lockstep/parallel/checksum.h"
#include "lockstep/parallel/gradient.h"

namespace lockstep::detail {
namespace {

/// Elements of a gradient that the digest of a change in place covers at most.
constexpr std::int64_t most_samples = 64;

std::uint32_t version_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

}  // namespace

void GradientRecord::set_averaged(const at::Tensor& values) {
  changed_ = false;
  averaged_ = true;
  version_ = version_of(values);
}

GradientState GradientRecord::state(const at::Tensor& gradient, const at::Tensor& values) const {
  if (!gradient.defined()) return GradientState::none;
  if (changed_) return GradientState::local;
  const bool untouched = averaged_ && lies_in(gradient, values) && version_of(gradient) == version_;
  return untouched ? GradientState::averaged : GradientState::edited;
}

std::uint64_t digest_of_edited(const at::Tensor& gradient, const at::Tensor& values) {
  if (!lies_in(gradient, values)) return checksum(gradient);
  const auto size = static_cast<std::size_t>(gradient.element_size());
  const auto* const bytes = static_cast<const std::byte*>(gradient.const_data_ptr());
  const std::int64_t count = std::min(gradient.numel(), most_samples);
  std::vector<std::byte> sample(static_cast<std::size_t>(count) * size);
  for (std::int64_t i = 0; i < count; ++i) {
    // The first, the last, and some between them, in the order of memory: the slice is dense.
    const auto element = count > 1 ? i * (gradient.numel() - 1) / (count - 1) : 0;
    std::memcpy(sample.data() + static_cast<std::size_t>(i) * size,
                bytes + static_cast<std::size_t>(element) * size, size);
  }
  return digest(sample);
}

}  // namespace lockstep::detail
