#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "comm/host/world/block.h"
#include "comm/host/world/world_layout.h"

namespace lockstep::inline v0_2::host {

/// The memory of a world: header, rank states, the block of the world's group, then one heap per
/// rank. The file is sparse. Pages are populated before they are used, so that a shortage of memory
/// is an error and never a SIGBUS. The heaps need far more address space than the rest, so they are
/// mapped separately, on their first use.
class Arena {
 public:
  using Atomics = StdAtomics;

  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  int size() const { return header().size; }
  /// The world's descriptor, close-on-exec, for passing to processes that become ranks.
  int fd() const { return fd_; }

  Header& header() const { return *reinterpret_cast<Header*>(base_); }
  RankState& rank(int rank) const;
  Block world_block() const;

  /// Offset of the rank's heap, and the bytes of each heap.
  std::uint64_t heap_begin(int rank) const;
  std::uint64_t heap_bytes() const { return header().heap_bytes; }

  /// Maps the heaps into this process, if they are not mapped yet. Any thread.
  /// Throws: CommError if address space is short.
  void map_heaps() const;

  /// The memory at an offset. Memory of one allocation is contiguous.
  /// Throws: as map_heaps(), for an offset in a heap.
  std::byte* at(std::uint64_t offset) const {
    if (offset < fixed_bytes_) return base_ + offset;
    auto* heaps = heaps_.load(std::memory_order_acquire);
    if (heaps == nullptr) {
      map_heaps();
      heaps = heaps_.load(std::memory_order_acquire);
    }
    return heaps + (offset - fixed_bytes_);
  }
  /// The offset of memory in the arena; no_offset for any other memory.
  std::uint64_t offset_of(const std::byte* memory) const;

  /// Allocates the pages of [offset, offset + bytes).
  /// Throws: CommError naming the requested and the available memory.
  void populate(std::uint64_t offset, std::size_t bytes) const;
  /// Populates the records of a member of a group.
  /// Throws: as populate().
  void populate_records(const Block& block, int member) const;
  /// Releases the pages of [offset, offset + bytes), whole pages, which then are zero. False where
  /// the kernel cannot do it.
  bool release_pages(std::uint64_t offset, std::size_t bytes) const;

 protected:
  /// Takes ownership of the descriptor and of the memory at base.
  Arena(int fd, std::byte* base, std::size_t fixed_bytes, std::size_t bytes)
      : fd_(fd), base_(base), fixed_bytes_(fixed_bytes), bytes_(bytes) {}
  ~Arena();

 private:
  /// Another file may have its number, if the program closed the descriptor.
  /// Throws: CommError if the descriptor is not that of the memory.
  void expect_own_file() const;

  int fd_;
  std::byte* base_;          ///< all before the heaps
  std::size_t fixed_bytes_;  ///< of that
  std::size_t bytes_;        ///< of the file
  mutable std::mutex mapping_;
  mutable std::atomic<std::byte*> heaps_{nullptr};
};

/// Allocator of one rank's part of the arena, from which it allocates memory that other ranks can
/// read. First fit. Only its rank uses it.
class Heap {
 public:
  /// world_rank is used in error texts.
  Heap(const Arena& arena, int rank, int world_rank);

  /// Allocates bytes and returns their offset, aligned to a cache line.
  /// Throws: CommError if the heap or the machine has too little memory.
  std::uint64_t allocate(std::size_t bytes);
  /// The same for zeroed memory whose pages the caller populates before they are used.
  /// Units: bytes, of whole pages.
  std::uint64_t allocate_sparse(std::size_t bytes);
  void release(std::uint64_t offset, std::size_t bytes);

 private:
  using Ranges = std::map<std::uint64_t, std::size_t>;  ///< bytes by offset

  /// The first free range of this length.
  Ranges::iterator find(std::size_t bytes);
  /// Takes [begin, end) of a free range, and returns begin.
  std::uint64_t take(Ranges::iterator range, std::uint64_t begin, std::uint64_t end);

  const Arena& arena_;
  int world_rank_;
  Ranges free_;
  std::uint64_t populated_;  ///< what is behind it may not be populated
};

}  // namespace lockstep::host
