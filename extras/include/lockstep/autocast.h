#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace lockstep::inline v0_2 {

/// Mixed precision like Python's torch.autocast. While an Autocast exists, the calling thread runs
/// operators that benefit from lower precision in that precision, and operators that need float32
/// in float32. Use it for the forward and the loss, and call backward() outside: autograd uses each
/// operator's precision. Parameters and their gradients stay float32, so strategies are not
/// affected.
///
///     at::Tensor loss;
///     {
///       const lockstep::Autocast lower;
///       loss = cross_entropy(ddp(batch.data), batch.target);
///     }
///     loss.backward();
///
/// May be nested. Must be destroyed in reverse order of construction, on the same thread.
class Autocast {
 public:
  /// dtype: kBFloat16 or kHalf; kFloat disables an enclosing Autocast.
  /// Throws: InvalidArgument for any other dtype.
  explicit Autocast(at::ScalarType dtype = at::kBFloat16, at::DeviceType device = at::kCPU);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  at::DeviceType device_;
  bool enabled_before_;
  at::ScalarType dtype_before_;
};

}  // namespace lockstep
