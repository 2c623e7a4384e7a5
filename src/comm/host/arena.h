#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "comm/host/block.h"
#include "comm/host/world_layout.h"

namespace lockstep::inline v0_2::host {

/// A world's memory, mapped: header, rank states, the world group's block, then one heap a rank.
/// The file behind it is sparse; what is used is populated first, so that a shortage is an error
/// and never a SIGBUS.
class Arena {
 public:
  static std::unique_ptr<Arena> create(int size, std::size_t heap_bytes);
  static std::unique_ptr<Arena> attach(int fd, int size);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  int size() const { return header().size; }
  int fd() const { return fd_; }

  Header& header() const { return *reinterpret_cast<Header*>(base_); }
  RankState& rank(int rank) const;
  Block world_block() const;

  /// Where the rank's heap begins, and how long it is.
  std::uint64_t heap_begin(int rank) const;
  std::uint64_t heap_bytes() const { return header().heap_bytes; }

  std::byte* at(std::uint64_t offset) const { return base_ + offset; }
  /// Where memory lies in the arena; no_offset for any other memory.
  std::uint64_t offset_of(const std::byte* memory) const;

  /// Takes the memory behind [offset, offset + bytes) from the machine.
  /// Throws: CommError saying how much was asked for and how much there is.
  void populate(std::uint64_t offset, std::size_t bytes) const;

 private:
  Arena(int fd, std::byte* base, std::size_t bytes) : fd_(fd), base_(base), bytes_(bytes) {}

  int fd_;
  std::byte* base_;
  std::size_t bytes_;
};

/// The exchangeable memory of one rank: first fit over its part of the arena. Only its rank takes
/// and gives back.
class Heap {
 public:
  /// name: the number by which messages name the rank.
  Heap(const Arena& arena, int rank, int name);

  /// The offset of bytes of memory, aligned to a cache line.
  /// Throws: CommError when the part or the machine has not that much left.
  std::uint64_t take(std::size_t bytes);
  void give_back(std::uint64_t offset, std::size_t bytes);

 private:
  const Arena& arena_;
  int name_;
  std::uint64_t populated_;  ///< everything below belongs to the world already
  std::map<std::uint64_t, std::size_t> free_;
};

}  // namespace lockstep::host
