#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <cstdlib>
#include <cstring>

#include "tests/device/simulation/accelerator.h"

namespace lockstep::simulation {
namespace {

struct PinnedBlock {
  void* at;
  std::size_t bytes;
  int device;
};

struct PinnedMemory final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &drop, c10::Device(c10::kCPU)};
    constexpr std::size_t page = 64;
    void* at = std::aligned_alloc(page, (bytes + page - 1) / page * page);
    TORCH_CHECK(at != nullptr, "no memory");
    std::memset(at, 0xff, bytes);
    add_pinned(at, bytes);
    return {at, new PinnedBlock{at, bytes, current_device()}, &drop, c10::Device(c10::kCPU)};
  }
  static void drop(void* context) {
    auto* block = static_cast<PinnedBlock*>(context);
    if (block == nullptr) return;
    const std::vector<Access> all{{block->at, block->bytes, true}};
    reclaim(block->device, users_of(block->at), "the release of pinned memory", all, [block] {
      remove_pinned(block->at);
      std::memset(block->at, 0xff, block->bytes);
      std::free(block->at);
      delete block;
    });
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

}  // namespace

c10::Allocator* pinned_memory() {
  static PinnedMemory* const one = new PinnedMemory;
  return one;
}

}  // namespace lockstep::simulation
