#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "tests/device/simulation/accelerator.h"

namespace lockstep::simulation {
namespace {

struct PinnedBlock {
  void* at;
  std::size_t bytes;
  int device;
  std::vector<Stream*> users = {};
};

struct PinnedMemory final : c10::Allocator {
  std::mutex mutex;  // of the blocks and their users
  std::map<const void*, PinnedBlock*> blocks;

  c10::DataPtr allocate(std::size_t bytes) override;
  static void drop(void* context);
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};
PinnedMemory& memory_of_host() {
  static PinnedMemory* const one = new PinnedMemory;
  return *one;
}

c10::DataPtr PinnedMemory::allocate(std::size_t bytes) {
  if (bytes == 0) return {nullptr, nullptr, &drop, c10::Device(c10::kCPU)};
  constexpr std::size_t page = 64;
  void* at = std::aligned_alloc(page, (bytes + page - 1) / page * page);
  TORCH_CHECK(at != nullptr, "no memory");
  std::memset(at, 0xff, bytes);
  auto* block = new PinnedBlock{at, bytes, current_device()};
  add_pinned(at, bytes);
  const std::lock_guard lock(mutex);
  blocks[at] = block;
  return {at, block, &drop, c10::Device(c10::kCPU)};
}

void PinnedMemory::drop(void* context) {
  auto* block = static_cast<PinnedBlock*>(context);
  if (block == nullptr) return;
  {
    const std::lock_guard lock(memory_of_host().mutex);
    memory_of_host().blocks.erase(block->at);
  }
  const std::vector<Access> all{{block->at, block->bytes, true}};
  reclaim(block->device, block->users, "the release of pinned memory", all, [block] {
    remove_pinned(block->at);
    std::memset(block->at, 0xff, block->bytes);
    std::free(block->at);
    delete block;
  });
}

}  // namespace

c10::Allocator* pinned_memory() { return &memory_of_host(); }

void record_pinned_use(const void* memory, Stream* stream) {
  auto& all = memory_of_host();
  const std::lock_guard lock(all.mutex);
  auto found = all.blocks.upper_bound(memory);
  if (found == all.blocks.begin()) return;
  auto* block = (--found)->second;
  if (memory >= static_cast<std::byte*>(block->at) + block->bytes) return;
  if (std::ranges::find(block->users, stream) == block->users.end()) {
    block->users.push_back(stream);
  }
}

}  // namespace lockstep::simulation
