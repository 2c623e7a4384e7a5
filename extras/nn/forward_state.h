#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

namespace lockstep::inline v0_2::detail {

/// The state that a forward reads and changes, beside its inputs and parameters: that of random
/// generators, the calling thread's autocast state, and values and autograd versions of buffers.
class ForwardState {
 public:
  ForwardState(const std::vector<at::Generator>& generators,
               const std::vector<at::Tensor>& buffers);
  /// Forgets the buffers that still have these values, where that needs no wait for a device.
  void forget_unchanged_buffers();
  void restore() const;
  /// The current state of the same generators and buffers.
  ForwardState current() const;

 private:
  struct Autocast {
    bool enabled;
    at::ScalarType dtype;
  };
  struct Buffer {
    at::Tensor buffer, copy;
    std::uint32_t version;
  };
  static constexpr std::array devices = {at::kCPU, at::kCUDA, at::kXPU, at::kMPS, at::kPrivateUse1};

  std::vector<std::pair<at::Generator, at::Tensor>> random_;
  std::array<Autocast, devices.size()> autocast_;  ///< per device type
  std::vector<Buffer> buffers_;
};

}  // namespace lockstep::detail
