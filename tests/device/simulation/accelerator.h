#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <cstdint>

#include "tests/device/simulation/runtime.h"

/// The simulated accelerator as LibTorch sees it.
namespace lockstep::simulation {

constexpr auto device_type = c10::DeviceType::PrivateUse1;

inline c10::Device torch_device(int index) {
  return {device_type, static_cast<c10::DeviceIndex>(index)};
}

/// The stream of the runtime behind a stream of LibTorch.
Stream* runtime_stream(const c10::Stream& stream);
/// The current stream of this thread on the device.
Stream* runtime_stream(c10::Device device);

/// Keeps the memory until the stream has run what it has now, as record_stream() does.
void record_use(const c10::DataPtr& memory, Stream* stream);
/// The same for pinned memory, by any address in it.
void record_pinned_use(const void* memory, Stream* stream);

const at::Generator& device_generator(int device);
/// A generator for one random operator, with a seed that the source draws now. Random numbers then
/// depend on the order of launches, and not on when streams run.
at::Generator next_generator(at::Generator source);

void register_accelerator();
void register_operators();
void register_autocast();

}  // namespace lockstep::simulation
