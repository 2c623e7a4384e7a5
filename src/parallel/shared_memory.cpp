#include "parallel/shared_memory.h"

#include <ATen/ops/from_blob.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "core/environment.h"
#include "core/system/process.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {
namespace {

/// Precedes the bytes of a block.
struct alignas(64) BlockHeader {
  std::atomic<int> references;  ///< ranks that still have a tensor over the block
};

/// Blocks in this process's heap that this process has released and other ranks still use. Never
/// destroyed, since tensors may outlive any static object.
struct ReleasedBlocks {
  std::mutex mutex;
  std::vector<std::shared_ptr<std::byte>> blocks;

  static ReleasedBlocks& get() {
    static auto& all = *new ReleasedBlocks;
    return all;
  }
};

BlockHeader& header_of(std::byte* block) { return *reinterpret_cast<BlockHeader*>(block); }

void free_unused_blocks() {
  auto& released = ReleasedBlocks::get();
  const std::lock_guard lock(released.mutex);
  std::erase_if(released.blocks,
                [](const auto& block) { return header_of(block.get()).references.load() == 0; });
}

/// Call when this rank has no tensor over the block any more. owned: on rank 0, the block.
void release(std::byte* block, std::shared_ptr<std::byte> owned) {
  const bool is_last = header_of(block).references.fetch_sub(1) == 1;
  if (!owned || is_last) return;
  auto& released = ReleasedBlocks::get();
  const std::lock_guard lock(released.mutex);
  released.blocks.push_back(std::move(owned));
}

}  // namespace

bool shares_memory(const DataParallelOptions& options) {
  return options.share_memory ? *options.share_memory : Environment::read().share_memory;
}

void check_shares_memory(const Group& group) {
  const auto byte = group.communicator().allocate(1);
  if (group.communicator().place_of(byte.get()).has_value()) return;
  throw InvalidArgument(concat("share_memory: got ranks of one host on the ",
                               group.communicator().backend(),
                               " backend, expected the host backend or, with several hosts, the "
                               "hierarchical backend: unset LOCKSTEP_BACKEND, or set share_memory "
                               "= false"));
}

at::Tensor shared_memory(const Group& group, std::size_t bytes) {
  free_unused_blocks();
  auto& communicator = group.communicator();
  std::shared_ptr<std::byte> owned;
  std::int64_t address = 0;
  if (group.rank() == 0) {
    owned = communicator.allocate(sizeof(BlockHeader) + bytes);
    new (owned.get()) BlockHeader{.references = group.size()};
    address = static_cast<std::int64_t>(*communicator.place_of(owned.get()));
  }
  communicator.broadcast(&address, 1, DType::i64, 0).wait();
  auto* memory = communicator.at_place(static_cast<std::uint64_t>(address));
  // The group keeps the world's memory mapped.
  return at::from_blob(
      memory + sizeof(BlockHeader), {static_cast<std::int64_t>(bytes)},
      [group, memory, owned = std::move(owned), process = ForkGuard()](void*) {
        if (!process.in_child()) release(memory, owned);
      },
      at::kByte);
}

}  // namespace lockstep::detail
