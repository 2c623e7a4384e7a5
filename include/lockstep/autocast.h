#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace lockstep::inline v0_2 {

/// Python's torch.autocast, of which LibTorch offers only the parts. While an Autocast lives,
/// operators of the calling thread that gain from a lower precision compute in it. Operators that
/// need float32 compute in float32. Use it for the forward and the loss; call backward() outside:
/// it takes each operator's precision by itself. Parameters and their gradients stay float32, so
/// nothing changes for any strategy.
///
///     at::Tensor loss;
///     {
///       const lockstep::Autocast lower;
///       loss = cross_entropy(ddp(batch.data), batch.target);
///     }
///     loss.backward();
///
/// May be nested; ends in the reverse order of beginning, on the same thread.
class Autocast {
 public:
  /// dtype: kBFloat16 or kHalf; kFloat switches off what is around it.
  /// Throws: InvalidArgument for any other.
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
