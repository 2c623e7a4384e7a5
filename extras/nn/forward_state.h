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

/// States of random generators.
class RandomState {
 public:
  explicit RandomState(const std::vector<at::Generator>& generators);
  void restore() const;
  std::vector<at::Generator> generators() const;

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

/// The calling thread's autocast state.
class AutocastState {
 public:
  AutocastState();
  void restore() const;

 private:
  struct OfDevice {
    bool enabled;
    at::ScalarType dtype;
  };
  static constexpr std::array devices = {at::kCPU, at::kCUDA, at::kXPU, at::kMPS, at::kPrivateUse1};
  std::array<OfDevice, devices.size()> states_;
};

/// Values and autograd versions of buffers.
class BufferState {
 public:
  explicit BufferState(const std::vector<at::Tensor>& buffers);
  /// Forgets the buffers that still have these values, where that needs no wait for a device.
  void forget_unchanged();
  void restore() const;
  std::vector<at::Tensor> buffers() const;

 private:
  struct Value {
    at::Tensor buffer, copy;
    std::uint32_t version;
  };
  std::vector<Value> values_;
};

/// The state that a forward reads and changes, beside its inputs and parameters.
struct ForwardState {
  RandomState random;
  AutocastState autocast;
  BufferState buffers;

  void restore() const {
    random.restore();
    autocast.restore();
    buffers.restore();
  }
};

/// Runs a forward in an earlier state. Its destructor restores the state of before.
class ForwardStateScope {
 public:
  explicit ForwardStateScope(const ForwardState& state);
  ~ForwardStateScope();
  ForwardStateScope(const ForwardStateScope&) = delete;
  ForwardStateScope& operator=(const ForwardStateScope&) = delete;

 private:
  ForwardState before_;
};

}  // namespace lockstep::detail
