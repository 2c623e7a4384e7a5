#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/exchange.h"

namespace lockstep::inline v0_2::detail {

/// The parameter's mean gradient as it is when it was computed with create_graph. The mean has no
/// graph: a backward that comes to it raises InvalidArgument, where it would otherwise take the
/// mean for a constant without a word. Shares memory with values.
at::Tensor without_graph(const at::Tensor& values, const std::string& parameter);

/// Throws InvalidArgument about a parameter.
[[noreturn]] void refuse(const std::string& name, std::string_view why);

/// Whether a gradient is the slice: Module::zero_grad(false) puts another tensor over its memory.
bool lies_in(const at::Tensor& gradient, const at::Tensor& values);

/// Throws: InvalidArgument when the gradient cannot be copied to the slice.
void expect_like(const at::Tensor& gradient, const Bucket::Slice& slice);

/// How a parameter's gradient stands to the last exchange.
enum class GradientState {
  none,      ///< undefined
  averaged,  ///< the mean of the last exchange, untouched
  edited,    ///< changed since without a backward: clipped, zeroed, replaced, set by hand
  local,     ///< a backward of this rank has changed it since
};

/// State of one parameter's gradient on this rank, beyond its values. It follows from the gradient
/// itself, so every change that a program makes between two exchanges counts.
class GradientRecord {
 public:
  /// A backward has added to the gradient.
  void add_backward(const at::Tensor& gradient, const at::Tensor& values);
  /// The gradient counts as changed by a backward.
  void set_changed() { changed_ = true; }
  bool changed() const { return changed_; }

  /// The values in the bucket are now a mean that all ranks have.
  void set_averaged(const at::Tensor& values);
  /// The exchange is over; it did not touch the gradient.
  void set_unchanged(const at::Tensor& gradient, const at::Tensor& values);
  /// The exchange is over; the gradient stays this rank's own.
  void set_not_averaged() { changed_ = averaged_ = false; }

  /// Shapes: values, the parameter's slice of its bucket.
  GradientState state(const at::Tensor& gradient, const at::Tensor& values) const;
  /// Whether the mean of the last exchange is no longer a part of the gradient, as after
  /// zero_grad().
  bool has_lost_mean(const at::Tensor& gradient, const at::Tensor& values) const;

 private:
  bool is_untouched(const at::Tensor& gradient, const at::Tensor& values,
                    std::uint32_t additions = 0) const;

  bool changed_ = false;
  bool averaged_ = false;
  bool lost_mean_ = false;     ///< before a backward changed the gradient
  std::uint32_t version_ = 0;  ///< of the values when they were averaged
};

/// 64 bits of some elements of a mean that counts as untouched. They differ after clip_grad_norm_,
/// which scales all elements without a change of the gradient's version.
std::uint64_t digest_of_mean(const at::Tensor& mean);

}  // namespace lockstep::detail
