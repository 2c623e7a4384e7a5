#include "parallel/gradient.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>

#include "core/digest.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

at::Tensor without_graph(const at::Tensor& values, const std::string& parameter) {
  auto mean = values.detach();
  mean.set_requires_grad(true);
  mean.register_hook([parameter](const at::Tensor&) {
    throw InvalidArgument(concat(
        "parameter ", parameter,
        ": a backward reached its averaged gradient, which has no graph even with create_graph: "
        "differentiate gradients of autograd::grad(), which are not averaged, and call backward() "
        "once, on the whole loss"));
  });
  return mean;
}

void refuse(const std::string& name, std::string_view why) {
  throw InvalidArgument(concat("parameter ", name, ": ", why));
}

bool is_stored_in(const at::Tensor& gradient, const at::Tensor& values) {
  return gradient.is_same(values) ||
         (gradient.defined() && gradient.layout() == at::kStrided && values.defined() &&
          values.layout() == at::kStrided && gradient.data_ptr() == values.data_ptr() &&
          gradient.strides() == values.strides());
}

void expect_copyable(const at::Tensor& gradient, const Bucket::Slice& slice) {
  const auto& values = slice.values;
  if (gradient.layout() == at::kStrided && gradient.scalar_type() == values.scalar_type() &&
      gradient.sizes() == values.sizes()) {
    return;
  }
  refuse(slice.name,
         concat("got a gradient of layout ", gradient.layout(), ", ",
                toString(gradient.scalar_type()), ' ', gradient.sizes(),
                ", expected a dense one of ", toString(values.scalar_type()), ' ', values.sizes()));
}

namespace {

/// Most elements that the digest of a mean covers.
constexpr std::int64_t max_samples = 4;

std::uint32_t version_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

}  // namespace

void GradientRecord::add_backward(const at::Tensor& gradient, const at::Tensor& values) {
  // Autograd accumulates by one in-place operation, which increments the version by one.
  if (!changed_) lost_mean_ = averaged_ && !is_untouched(gradient, values, 1);
  changed_ = true;
}

void GradientRecord::set_averaged(const at::Tensor& values) {
  changed_ = false;
  averaged_ = true;
  version_ = version_of(values);
}

void GradientRecord::keep_average(const at::Tensor& gradient, const at::Tensor& values) {
  if (averaged_ && !changed_ && is_untouched(gradient, values, 1)) ++version_;
}

void GradientRecord::set_unchanged(const at::Tensor& gradient, const at::Tensor& values) {
  changed_ = false;
  averaged_ = averaged_ && is_untouched(gradient, values);
}

bool GradientRecord::is_untouched(const at::Tensor& gradient, const at::Tensor& values,
                                  std::uint32_t additions) const {
  return is_stored_in(gradient, values) && version_of(gradient) == version_ + additions;
}

bool GradientRecord::has_lost_mean(const at::Tensor& gradient, const at::Tensor& values) const {
  return averaged_ && (changed_ ? lost_mean_ : !is_untouched(gradient, values));
}

GradientState GradientRecord::state(const at::Tensor& gradient, const at::Tensor& values) const {
  if (!gradient.defined()) return GradientState::none;
  if (changed_) return GradientState::local;
  return averaged_ && is_untouched(gradient, values) ? GradientState::averaged
                                                     : GradientState::edited;
}

std::uint64_t digest_of_mean(const at::Tensor& mean) {
  // To read a device's memory, every step would wait for the device.
  if (!mean.is_cpu()) return 0;
  if (mean.layout() == at::kSparse) return digest_of_mean(mean._values());
  const auto size = static_cast<std::size_t>(mean.element_size());
  const auto* const bytes = static_cast<const std::byte*>(mean.const_data_ptr());
  const std::int64_t count = std::min(mean.numel(), max_samples);
  std::array<std::byte, max_samples * sizeof(double)> sample;
  for (std::int64_t i = 0; i < count; ++i) {
    // The first, the last and evenly spaced elements between them, in memory order.
    const auto element = count > 1 ? i * (mean.numel() - 1) / (count - 1) : 0;
    std::memcpy(sample.data() + static_cast<std::size_t>(i) * size,
                bytes + static_cast<std::size_t>(element) * size, size);
  }
  return digest(std::span(sample).first(static_cast<std::size_t>(count) * size));
}

}  // namespace lockstep::detail
