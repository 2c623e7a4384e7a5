#include "parallel/shared_memory.h"

#include <ATen/ops/from_blob.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {
namespace {

/// Precedes the bytes of a block.
struct alignas(64) BlockHeader {
  std::atomic<int> references;  ///< ranks that still have a tensor over the block
};

struct OwnedBlock {
  std::shared_ptr<std::byte> memory;
  const BlockHeader* header;
};

/// Blocks in this process's heap that this process has released and other ranks still use. Never
/// destroyed, since tensors may outlive any static object.
struct ReleasedMemory {
  std::mutex mutex;
  std::vector<OwnedBlock> memory;

  static ReleasedMemory& get() {
    static auto* all = new ReleasedMemory;
    return *all;
  }
  void add(OwnedBlock block) {
    const std::lock_guard lock(mutex);
    memory.push_back(std::move(block));
  }
  void free_unused() {
    const std::lock_guard lock(mutex);
    std::erase_if(memory,
                  [](const OwnedBlock& block) { return block.header->references.load() == 0; });
  }
};

/// One rank's reference to a block. On rank 0 it owns the block.
class BlockReference {
 public:
  BlockReference(const Group& group, BlockHeader& header, std::shared_ptr<std::byte> owned)
      : group_(group), header_(header), owned_(std::move(owned)) {}
  BlockReference(const BlockReference&) = delete;
  BlockReference& operator=(const BlockReference&) = delete;

  ~BlockReference() {
    const bool is_last = header_.references.fetch_sub(1) == 1;
    if (owned_ && !is_last) {
      ReleasedMemory::get().add({std::move(owned_), &header_});
    }
  }

 private:
  Group group_;  ///< keeps the world's memory mapped
  BlockHeader& header_;
  std::shared_ptr<std::byte> owned_;  ///< on rank 0 only
};

}  // namespace

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
  ReleasedMemory::get().free_unused();
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
  auto reference = std::make_shared<BlockReference>(group, *reinterpret_cast<BlockHeader*>(memory),
                                                    std::move(owned));
  return at::from_blob(
      memory + sizeof(BlockHeader), {static_cast<std::int64_t>(bytes)},
      [reference = std::move(reference)](void*) mutable { reference.reset(); }, at::kByte);
}

}  // namespace lockstep::detail
