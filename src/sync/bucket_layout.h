#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "averaging/average.h"
#include "lockstep/exchange.h"

namespace lockstep::inline v0_2::detail {

/// The parts of a bucket that its parameters use. Exchanges split their state by it.
class Layout {
 public:
  struct Part {
    std::string name;
    std::size_t offset;
    std::size_t numel;
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;
  };

  explicit Layout(const Bucket& bucket);

  /// One part per slice, in order. A bucket without slices has one part.
  std::span<const Part> parts() const { return parts_; }

  /// Elements of all parts, without the padding between them.
  std::size_t numel() const;

  /// The slices of a flat tensor of the bucket's length, as "<parameter>.<what>". They share its
  /// memory. An undefined tensor has none.
  State split(const at::Tensor& flat, std::string_view what) const;
  /// Copies the slices from a state into the flat tensor.
  /// Throws: InvalidArgument when a part is missing or has other sizes.
  void join(const State& state, std::string_view what, const at::Tensor& flat) const;

  /// The parameter that an element belongs to.
  const std::string& name_at(std::size_t element) const;

 private:
  std::vector<Part> parts_;
};

/// The entry "<parameter>.<what>" of a state.
/// Throws: InvalidArgument when it is missing or has other sizes or another dtype.
const at::Tensor& find(const State& state, const std::string& parameter, std::string_view what,
                       const at::Tensor& like);

/// The memory of a flat tensor, as averages see it.
averaging::Elements elements_of(const at::Tensor& values);
/// The bucket's values and parameters, as averages see them.
averaging::Averaged averaged(const Bucket& bucket);

/// Whether a dense tensor has neither NaN nor Inf. Waits for a device.
bool is_finite(const at::Tensor& values);

/// The first byte of a tensor.
inline std::byte* memory_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}

/// A flat tensor's elements.
template <class T>
std::span<T> elements(const at::Tensor& flat) {
  return {flat.data_ptr<T>(), static_cast<std::size_t>(flat.numel())};
}

}  // namespace lockstep::detail
