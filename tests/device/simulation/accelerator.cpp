#include "tests/device/simulation/accelerator.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

namespace lockstep::simulation {
namespace {

constexpr int pool = 32;  // streams of each priority, as CUDA's
thread_local std::array<int, devices> current_streams{};
thread_local int last_error = 0;  // cudaGetLastError()

int index_of(c10::Device device) { return device.has_index() ? device.index() : current_device(); }

c10::Stream torch_stream(int device, int id) {
  return c10::Stream(c10::Stream::UNSAFE, torch_device(device), id);
}

/// LibTorch has the use of CUDA's functions throw after CUDA's exit handlers, also in functions
/// that are noexcept.
void expect_running() {
  if (exiting()) throw std::runtime_error("simulated device: driver shutting down");
}

Event* as_event(void* event) {
  expect_running();
  return static_cast<Event*>(event);
}

/// Memory that one stream took.
struct Block {
  void* at;
  std::size_t bytes;
  int device;
  Stream* home;
};

/// Fills memory with NaN when it is taken and when it is freed, in the order of the stream that
/// took it. A program that uses freed memory finds NaN, and so does one that reads before it
/// writes.
struct DeviceMemory final : c10::Allocator {
  static std::function<void()> fill(void* at, std::size_t bytes) {
    return [at, bytes] { std::memset(shadow(at), 0xff, bytes); };
  }
  c10::DataPtr allocate(std::size_t bytes) override {
    const int device = current_device();
    if (bytes == 0) return {nullptr, nullptr, &drop, torch_device(device)};
    auto* home = runtime_stream(torch_device(device));
    void* at = simulation::allocate(device, bytes);
    enqueue(home, "the allocation of memory", Kind::internal, {{at, bytes, true}}, fill(at, bytes));
    return {at, new Block{at, bytes, device, home}, &drop, torch_device(device)};
  }
  static void drop(void* context) {
    const std::unique_ptr<Block> block(static_cast<Block*>(context));
    if (!block) return;
    const std::vector<Access> all{{block->at, block->bytes, true}};
    auto free = [at = block->at, bytes = block->bytes] {
      fill(at, bytes)();
      release(at);
    };
    const char* name = "the release of memory";
    auto users = users_of(block->at);
    if (users.empty()) return enqueue(block->home, name, Kind::internal, all, free);
    users.push_back(block->home);
    reclaim(block->device, users, name, all, free);
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    enqueue(runtime_stream(torch_device(current_device())), "copy_data", Kind::kernel,
            {{from, bytes, false}, {to, bytes, true}},
            [=] { std::memcpy(shadow(to), shadow(from), bytes); });
  }
};
DeviceMemory& device_memory() {
  static DeviceMemory* const one = new DeviceMemory;
  return *one;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return accelerator_type; }
  c10::DeviceIndex deviceCount() const noexcept override { return devices; }
  c10::Device getDevice() const override {
    expect_running();
    return torch_device(current_device());
  }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(index_of(device) < devices, "no such device: ", device);
    set_current_device(index_of(device));
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    set_current_device(index_of(device));
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto old = getDevice();
    setDevice(device);
    return old;
  }

  c10::Stream getStream(c10::Device device) const override {
    const int index = index_of(device);
    return torch_stream(index, current_streams[static_cast<std::size_t>(index)]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return torch_stream(index_of(device), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    static std::array<std::array<std::atomic<unsigned>, 2>, devices> next{};
    const int index = index_of(device);
    auto& counter = next[static_cast<std::size_t>(index)][high_priority ? 1 : 0];
    const auto id = 1 + static_cast<int>(counter++ % pool) + (high_priority ? pool : 0);
    return torch_stream(index, id);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto old = getStream(stream.device());
    current_streams[static_cast<std::size_t>(index_of(stream.device()))] =
        static_cast<int>(stream.id());
    return old;
  }
  /// Null for the default stream, as CUDA's.
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return stream.id() == 0 ? nullptr : runtime_stream(stream);
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    simulation::synchronize(runtime_stream(stream));
  }
  void synchronizeDevice(c10::DeviceIndex device) const override { synchronize_device(device); }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    if (memory.get_deleter() != &DeviceMemory::drop || memory.get_context() == nullptr) return;
    const auto* block = static_cast<Block*>(memory.get_context());
    if (auto* user = runtime_stream(stream); block->home != user) add_user(block->at, user);
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    if (*event == nullptr) *event = make_event();
    simulation::record(as_event(*event), runtime_stream(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) wait(runtime_stream(stream), as_event(event));
  }
  bool queryEvent(void* event) const override { return event == nullptr || done(as_event(event)); }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) simulation::synchronize(as_event(event));
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    if (event != nullptr) destroy(as_event(event));
  }
};

struct Hooks final : HooksOf<at::PrivateUse1HooksInterface> {
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

}  // namespace

/// In place of CUDA's function, which is called, too, where it is loaded: it may have no GPU.
extern "C" int cudaThreadExchangeStreamCaptureMode(int* mode) {
  using Function = int (*)(int*);
  static const auto real =
      reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "cudaThreadExchangeStreamCaptureMode"));
  int mode_of_cuda = *mode;
  exchange_capture_mode(*mode);
  if (real != nullptr) real(&mode_of_cuda);
  return 0;
}

/// In place of CUDA's function, whose last error on a machine without a GPU is always that it has
/// none.
extern "C" int cudaGetLastError() { return std::exchange(last_error, 0); }

/// In place of CUDA's functions. Null memory is an invalid value.
extern "C" int cudaHostRegister(void* data, std::size_t bytes, unsigned) {
  if (data == nullptr) return last_error = 1;
  add_pinned(data, bytes);
  return 0;
}
extern "C" int cudaHostUnregister(void* data) {
  remove_pinned(data);
  return 0;
}

Stream* runtime_stream(const c10::Stream& stream) {
  return simulation::stream(stream.device_index(), static_cast<int>(stream.id()));
}

Stream* runtime_stream(c10::Device device) {
  const int index = index_of(device);
  return simulation::stream(index, current_streams[static_cast<std::size_t>(index)]);
}

void register_accelerator() {
  c10::register_privateuse1_backend("sim");
  static const Guard* const guard = new Guard;
  c10::impl::device_guard_impl_registry[static_cast<std::size_t>(accelerator_type)] = guard;
  c10::SetAllocator(accelerator_type, &device_memory());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
}

}  // namespace lockstep::simulation
