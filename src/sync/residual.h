#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>

#include "lockstep/exchange.h"
#include "sync/bucket_layout.h"

namespace lockstep::inline v0_2::detail {

/// Error feedback: the part of a bucket's gradients that has not been sent yet. It has the bucket's
/// size and is in the group's memory. An exchange without error feedback has an empty Residual.
class Residual {
 public:
  Residual(bool kept, const Bucket& bucket);
  /// The residual in memory of an average; null for none.
  Residual(std::shared_ptr<std::byte> memory, const Bucket& bucket);

  bool kept() const { return values_.defined(); }

  /// Flat, in the order of the bucket. Undefined without error feedback.
  const at::Tensor& values() const { return values_; }

  /// Sets elements that are not finite to zero. Otherwise a rejected gradient would be sent at the
  /// next step.
  void drop_not_finite();

  /// Names are "<parameter>.residual".
  State state(const Layout& layout) const;
  void load(const Layout& layout, const State& state);

 private:
  at::Tensor values_;
};

}  // namespace lockstep::detail
