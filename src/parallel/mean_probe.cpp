#include "parallel/mean_probe.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace lockstep::inline v0_2::detail {
namespace {

template <class T>
const T* first_not_zero(const T* begin, const T* end) {
  return std::find_if(begin, end, [](T value) { return value != 0; });
}

/// The element that lies so many elements behind the first.
double at_offset(const at::Tensor& tensor, std::int64_t offset) {
  return tensor.scalar_type() == at::kDouble ? tensor.const_data_ptr<double>()[offset]
                                             : tensor.const_data_ptr<float>()[offset];
}

/// The offset in a tensor of the element that lies at an offset in another, dense one of its sizes.
std::int64_t same_place(const at::Tensor& dense, std::int64_t offset, const at::Tensor& tensor) {
  std::int64_t there = 0;
  for (std::int64_t dim = 0; dim < dense.dim(); ++dim) {
    if (dense.size(dim) > 1) {
      there += offset / dense.stride(dim) % dense.size(dim) * tensor.stride(dim);
    }
  }
  return there;
}

bool is_like(const at::Tensor& mean, const at::Tensor& other) {
  return other.defined() && other.layout() == at::kStrided && other.sizes() == mean.sizes() &&
         other.scalar_type() == mean.scalar_type();
}

}  // namespace

void MeanProbe::set(const at::Tensor& mean) {
  reset();
  const auto find = [&]<class T>(const T* values) {
    const T* const end = values + mean.numel();
    for (const T* at = first_not_zero(values, end); at != end && known_ < 2;
         at = first_not_zero(at + 1, end)) {
      elements_[static_cast<std::size_t>(known_++)] = {.offset = at - values, .value = *at};
    }
  };
  if (mean.scalar_type() == at::kDouble) {
    find(mean.const_data_ptr<double>());
  } else {
    find(mean.const_data_ptr<float>());
  }
}

bool MeanProbe::was_added_to(const at::Tensor& mean, const at::Tensor& gradient,
                             const at::Tensor& incoming) const {
  if (known_ < 2 || !is_like(mean, gradient) || !is_like(mean, incoming)) return false;
  const double rounding = 4 * (mean.scalar_type() == at::kDouble
                                   ? std::numeric_limits<double>::epsilon()
                                   : static_cast<double>(std::numeric_limits<float>::epsilon()));
  std::array<double, 2> times{};
  std::array<double, 2> uncertainty{};
  for (std::size_t i = 0; i < elements_.size(); ++i) {
    const auto [offset, value] = elements_[i];
    const double now = at_offset(gradient, same_place(mean, offset, gradient));
    const double came = at_offset(incoming, same_place(mean, offset, incoming));
    times[i] = (now - came) / value;
    uncertainty[i] = rounding * (std::abs(now) + std::abs(came)) / std::abs(value);
    // NaN, too, compares false.
    if (!(times[i] > uncertainty[i] && times[i] <= 1 + uncertainty[i] + rounding)) return false;
  }
  return std::abs(times[0] - times[1]) <= uncertainty[0] + uncertainty[1] + rounding;
}

}  // namespace lockstep::detail
