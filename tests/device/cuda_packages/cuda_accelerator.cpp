// The simulated devices as devices of the type CUDA: the streams, guards and caching allocator of
// the real libc10_cuda.so, over the double of libcudart.so.13.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>
#include <cstring>
#include <limits>

#include "tests/device/simulation/accelerator.h"

namespace c10::cuda::_internal {
// LibTorch declares it in no header.
C10_CUDA_API void setHasPrimaryContext(bool (*)(DeviceIndex));
}  // namespace c10::cuda::_internal

namespace lockstep::simulation {
namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

/// LibTorch looks for hooks of this name.
struct CUDAHooks final : HooksOf<at::CUDAHooksInterface> {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  int getNumGPUs() const override { return devices; }
  c10::DeviceIndex current_device() const override { return getCurrentDevice(); }
  void deviceSynchronize(c10::DeviceIndex device) const override { synchronize_device(device); }
};

using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
REGISTER_CUDA_HOOKS(CUDAHooks)

/// Memory of the caching allocator, filled with NaN in the order of the stream that takes it. The
/// check then reports memory that another stream still uses.
struct FilledMemory final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    auto memory = caching::get()->allocate(bytes);
    if (void* const at = memory.get(); at != nullptr) {
      enqueue(runtime_stream(memory.device()), "the allocation of memory", Kind::internal,
              {{at, bytes, true}}, [=] { std::memset(shadow(at), 0xff, bytes); });
    }
    return memory;
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    caching::get()->copy_data(to, from, bytes);
  }
};

Stream* runtime_stream(const c10::cuda::CUDAStream& stream) {
  auto* const native = stream.stream();
  if (native == nullptr) return simulation::stream(stream.device_index(), 0);
  return reinterpret_cast<Stream*>(native);
}

}  // namespace

Stream* runtime_stream(const c10::Stream& stream) {
  return runtime_stream(c10::cuda::CUDAStream(stream));
}

Stream* runtime_stream(c10::Device device) {
  return runtime_stream(c10::cuda::getCurrentCUDAStream(device.index()));
}

void register_accelerator() {
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  caching::get()->init(devices);
  static FilledMemory* const memory = new FilledMemory;
  constexpr auto before_others = std::numeric_limits<std::uint8_t>::max();
  c10::SetAllocator(accelerator_type, memory, before_others);
}

}  // namespace lockstep::simulation
