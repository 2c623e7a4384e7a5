#include "tests/device/simulation/accelerator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace lockstep::simulation {
namespace {

constexpr int pool = 32;  // streams of each priority, as CUDA's
thread_local std::array<int, devices> current_streams{};

int index_of(c10::Device device) { return device.has_index() ? device.index() : current_device(); }

c10::Stream torch_stream(int device, int id) {
  return c10::Stream(c10::Stream::UNSAFE, torch_device(device), id);
}

Event* as_event(void* event) { return static_cast<Event*>(event); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return device_type; }
  c10::DeviceIndex deviceCount() const noexcept override { return devices; }
  c10::Device getDevice() const override { return torch_device(current_device()); }
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
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return getStreamFromGlobalPool(device, priority < 0);
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
  bool queryStream(const c10::Stream& stream) const override {
    return idle(runtime_stream(stream));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    simulation::synchronize(runtime_stream(stream));
  }
  void synchronizeDevice(c10::DeviceIndex device) const override { synchronize_device(device); }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    record_use(memory, runtime_stream(stream));
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
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    return milliseconds(as_event(from), as_event(to));
  }
};

/// Memory that one stream took, with the other streams that record_use() names.
struct Block {
  void* at;
  std::size_t bytes;
  int device;
  Stream* home;
  std::vector<Stream*> users = {};
};
std::mutex users_mutex;  // of every block

void add_user(std::vector<Stream*>& users, Stream* stream) {
  const std::lock_guard lock(users_mutex);
  if (std::ranges::find(users, stream) == users.end()) users.push_back(stream);
}

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
    if (block->users.empty()) {
      enqueue(block->home, name, Kind::internal, all, free);
    } else {
      block->users.push_back(block->home);
      reclaim(block->device, block->users, name, all, free);
    }
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

/// Freed pinned memory stays until the streams that copy from or to it have done so.
struct PinnedMemory final : c10::Allocator {
  std::mutex mutex;
  std::map<const void*, Block*> blocks;

  c10::DataPtr allocate(std::size_t bytes) override;
  static void drop(void* context);
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  Block* find(const void* memory) {
    const std::lock_guard lock(mutex);
    auto found = blocks.upper_bound(memory);
    if (found == blocks.begin()) return nullptr;
    auto* block = (--found)->second;
    return memory < static_cast<std::byte*>(block->at) + block->bytes ? block : nullptr;
  }
};
PinnedMemory& pinned_memory() {
  static PinnedMemory* const one = new PinnedMemory;
  return *one;
}

c10::DataPtr PinnedMemory::allocate(std::size_t bytes) {
  if (bytes == 0) return {nullptr, nullptr, &drop, c10::Device(c10::kCPU)};
  constexpr std::size_t page = 64;
  void* at = std::aligned_alloc(page, (bytes + page - 1) / page * page);
  TORCH_CHECK(at != nullptr, "no memory");
  std::memset(at, 0xff, bytes);
  auto* block = new Block{at, bytes, current_device(), nullptr};
  add_pinned(at, bytes);
  const std::lock_guard lock(mutex);
  blocks[at] = block;
  return {at, block, &drop, c10::Device(c10::kCPU)};
}

void PinnedMemory::drop(void* context) {
  auto* block = static_cast<Block*>(context);
  if (block == nullptr) return;
  {
    const std::lock_guard lock(pinned_memory().mutex);
    pinned_memory().blocks.erase(block->at);
  }
  const std::vector<Access> all{{block->at, block->bytes, true}};
  reclaim(block->device, block->users, "the release of pinned memory", all, [block] {
    remove_pinned(block->at);
    std::memset(block->at, 0xff, block->bytes);
    std::free(block->at);
    delete block;
  });
}

std::vector<at::Generator>& generators() {
  static auto* const all = [] {
    auto* made = new std::vector<at::Generator>;
    for (int i = 0; i < devices; ++i) made->push_back(at::detail::createCPUGenerator());
    return made;
  }();
  return *all;
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return devices; }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_device());
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
    return device_generator(device < 0 ? current_device() : device);
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
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    const c10::DeviceGuard on(storage.device());
    auto fresh = device_memory().allocate(bytes);
    const auto kept = std::min(bytes, storage.nbytes());
    if (kept > 0) device_memory().copy_data(fresh.get(), storage.data(), kept);
    auto& changed = const_cast<c10::Storage&>(storage);
    changed.set_data_ptr(std::move(fresh));
    changed.set_nbytes(bytes);
  }
};

}  // namespace

Stream* runtime_stream(const c10::Stream& stream) {
  return simulation::stream(stream.device_index(), static_cast<int>(stream.id()));
}

Stream* runtime_stream(c10::Device device) {
  const int index = index_of(device);
  return simulation::stream(index, current_streams[static_cast<std::size_t>(index)]);
}

void record_use(const c10::DataPtr& memory, Stream* stream) {
  if (memory.get_deleter() != &DeviceMemory::drop || memory.get_context() == nullptr) return;
  auto* block = static_cast<Block*>(memory.get_context());
  if (block->home != stream) add_user(block->users, stream);
}

void record_pinned_use(const void* memory, Stream* stream) {
  if (auto* block = pinned_memory().find(memory)) add_user(block->users, stream);
}

const at::Generator& device_generator(int device) {
  return generators().at(static_cast<std::size_t>(device));
}

at::Generator next_generator(at::Generator source) {
  const std::lock_guard lock(source.mutex());
  return at::detail::createCPUGenerator(
      at::check_generator<at::CPUGeneratorImpl>(source)->random64());
}

void register_accelerator() {
  c10::register_privateuse1_backend("sim");
  static const Guard* const guard = new Guard;
  c10::impl::device_guard_impl_registry[static_cast<std::size_t>(device_type)] = guard;
  c10::SetAllocator(device_type, &device_memory());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  at::set_num_threads(1);
}

void install() {
  static std::once_flag once;
  std::call_once(once, [] {
    register_accelerator();
    register_operators();
    register_autocast();
  });
}

}  // namespace lockstep::simulation
