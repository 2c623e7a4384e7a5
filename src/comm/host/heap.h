#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "comm/host/arena.h"

namespace lockstep::inline v0_2::host {

/// The exchangeable memory of one rank: first fit over its part of the arena. Only its rank takes
/// and gives back.
class Heap {
 public:
  Heap(const Arena& arena, int rank);

  /// The offset of bytes of memory, aligned to a cache line.
  /// Throws: CommError when the part or the machine has not that much left.
  std::uint64_t take(std::size_t bytes);
  void give_back(std::uint64_t offset, std::size_t bytes);

 private:
  const Arena& arena_;
  int rank_;
  std::uint64_t populated_;  ///< everything below belongs to the world already
  std::map<std::uint64_t, std::size_t> free_;
};

}  // namespace lockstep::host
