#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "lockstep/exchange.h"
#include "sync/bucket_layout.h"

namespace lockstep::inline v0_2::detail {

/// Error feedback: what of a bucket's gradients has not been sent yet, one element for each of the
/// bucket's, in the group's memory. An exchange without error feedback keeps none.
class Residual {
 public:
  Residual(bool kept, const Bucket& bucket);

  bool kept() const { return values_.defined(); }

  /// Flat, in the order of the bucket. Undefined where none is kept.
  const at::Tensor& values() const { return values_; }
  template <class T>
  std::span<T> elements() const {
    return detail::elements<T>(values_);
  }

  /// Zeroes elements that are not finite. A refused gradient left them, and they would come back at
  /// the next step.
  void drop_not_finite();

  /// Under "<parameter>.residual".
  State state(const Layout& layout) const;
  void load(const Layout& layout, const State& state);

 private:
  at::Tensor values_;
};

}  // namespace lockstep::detail
