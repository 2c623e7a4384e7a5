#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace lockstep::inline v0_2::detail {

/// Tells whether an incoming gradient was added to a mean, or to a multiple of it as clipping
/// leaves. It looks at two elements of the mean that are not zero: (gradient − incoming) / mean
/// must be the same for both. A mean with a single such element is not watched, since any value is
/// a multiple of it.
class MeanProbe {
 public:
  /// Remembers a mean. Dense, Float or Double.
  void set(const at::Tensor& mean);
  void reset() { known_ = 0; }

  /// Whether gradient is what has come in and the mean. Shapes: all three alike, mean as it was
  /// set, whatever it holds now.
  bool was_added_to(const at::Tensor& mean, const at::Tensor& gradient,
                    const at::Tensor& incoming) const;

 private:
  struct Element {
    std::int64_t offset = 0;  ///< in the mean's memory
    double value = 0;
  };
  std::array<Element, 2> elements_;
  int known_ = 0;  ///< how many of them; fewer than two tell nothing
};

}  // namespace lockstep::detail
