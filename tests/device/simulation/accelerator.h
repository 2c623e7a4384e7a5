#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/Allocator.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include <cstddef>

#include "tests/device/simulation/runtime.h"

/// The simulated accelerator as LibTorch sees it. tools/check-cuda-packages compiles it a second
/// time, as CUDA devices.
namespace lockstep::simulation {

#if LOCKSTEP_SIMULATED_CUDA
constexpr auto accelerator_type = c10::DeviceType::CUDA;
constexpr auto accelerator_key = c10::DispatchKey::CUDA;
#else
constexpr auto accelerator_type = c10::DeviceType::PrivateUse1;
constexpr auto accelerator_key = c10::DispatchKey::PrivateUse1;
#endif

inline c10::Device torch_device(int index) {
  return {accelerator_type, static_cast<c10::DeviceIndex>(index)};
}

/// The stream of the runtime behind a stream of LibTorch.
Stream* runtime_stream(const c10::Stream& stream);
/// The current stream of this thread on the device.
Stream* runtime_stream(c10::Device device);

/// Memory of the host that stays, when it is freed, until the streams of add_user() have run what
/// they have then.
c10::Allocator* pinned_memory();

/// Gives the storage other memory and copies its contents.
void resize_storage(const c10::Storage& storage, std::size_t bytes);

const at::Generator& device_generator(int device);
/// A generator for one random operator, with a seed that the source draws now. Random numbers then
/// depend on the order of launches, and not on when streams run.
at::Generator next_generator(at::Generator source);

/// What LibTorch asks of a type of accelerator, by the interface that this type has.
template <class Interface>
struct HooksOf : Interface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return devices; }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(simulation::current_device());
  }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const auto old = getCurrentDevice();
    set_current_device(device);
    return old;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return device_generator(device < 0 ? simulation::current_device() : device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::detail::createCPUGenerator();
  }
  at::Device getDeviceFromPtr(void* memory) const override {
    int device = 0;
    TORCH_CHECK(is_device_memory(memory, &device), "not memory of a simulated device");
    return torch_device(device);
  }
  bool isPinnedPtr(const void* memory) const override { return is_pinned(memory); }
  at::Allocator* getPinnedMemoryAllocator() const override { return pinned_memory(); }
};

void register_accelerator();
void register_operators();

}  // namespace lockstep::simulation
