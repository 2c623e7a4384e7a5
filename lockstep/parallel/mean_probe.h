#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace lockstep::detail {

/// Tells whether the gradient that comes after a mean was added to it, or to a multiple of it as
/// clipping leaves, by two elements of the mean that are not zero: what is there beyond what has
/// come in is then as many times the one as the other. Of a single one anything is a multiple: such
/// a mean is not watched.
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
