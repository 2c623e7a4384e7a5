#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep::detail {

/// How a parameter's gradient stands to the last exchange.
enum class GradientState {
  none,      ///< undefined
  averaged,  ///< the mean of the last exchange, untouched
  edited,    ///< changed since without a backward: clipped, zeroed, replaced, set by hand
  local,     ///< a backward of this rank has changed it since
};

/// What this rank knows of one parameter's gradient beyond its values. The state follows from the
/// gradient itself, so that whatever a program does to it between two exchanges counts.
class GradientRecord {
 public:
  /// A backward has changed the gradient.
  void set_changed() { changed_ = true; }
  bool changed() const { return changed_; }

  /// The values in the bucket are now a mean that all ranks have.
  void set_averaged(const at::Tensor& values);
  /// The exchange is over; it did not touch the gradient.
  void set_unchanged() { changed_ = false; }
  /// The exchange is over; the gradient stays this rank's own.
  void set_not_averaged() { changed_ = averaged_ = false; }

  /// Shapes: values, the parameter's slice of its bucket.
  GradientState state(const at::Tensor& gradient, const at::Tensor& values) const;

 private:
  bool changed_ = false;
  bool averaged_ = false;
  std::uint32_t version_ = 0;  ///< of the values when they were averaged
};

/// 64 bits that tell an edited gradient from another: of all its values where it was replaced, of a
/// sample where a mean was changed in place, as clipping does at every step.
std::uint64_t digest_of_edited(const at::Tensor& gradient, const at::Tensor& values);

}  // namespace lockstep::detail
