#include "comm/host/heap.h"

#include <algorithm>
#include <iterator>

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::host {

namespace {

std::size_t size_class(std::size_t bytes) {
  return round_up(std::max<std::size_t>(bytes, 1), cache_line);
}

}  // namespace

Heap::Heap(const Arena& arena, int rank)
    : arena_(arena), rank_(rank), populated_(arena.heap_begin(rank)) {
  free_[populated_] = arena.heap_bytes();
}

std::uint64_t Heap::take(std::size_t bytes) {
  const auto refuse = [&] {
    throw CommError(detail::concat("host: rank ", rank_, " cannot take ", bytes,
                                   " bytes of exchangeable memory: its part of the world holds ",
                                   arena_.heap_bytes(), " bytes, some of them in use"));
  };
  if (bytes > arena_.heap_bytes()) refuse();
  const std::size_t wanted = size_class(bytes);
  const auto hole = std::find_if(free_.begin(), free_.end(),
                                 [&](const auto& entry) { return entry.second >= wanted; });
  if (hole == free_.end()) refuse();
  const auto [offset, length] = *hole;
  if (offset + wanted > populated_) {
    arena_.populate(populated_, offset + wanted - populated_);
    populated_ = offset + wanted;
  }
  free_.erase(hole);
  if (length > wanted) free_[offset + wanted] = length - wanted;
  return offset;
}

void Heap::give_back(std::uint64_t offset, std::size_t bytes) {
  auto hole = free_.emplace(offset, size_class(bytes)).first;
  if (const auto next = std::next(hole);
      next != free_.end() && hole->first + hole->second == next->first) {
    hole->second += next->second;
    free_.erase(next);
  }
  if (hole != free_.begin()) {
    const auto before = std::prev(hole);
    if (before->first + before->second == hole->first) {
      before->second += hole->second;
      free_.erase(hole);
    }
  }
}

}  // namespace lockstep::host
