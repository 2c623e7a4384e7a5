#include "lockstep/comm/host/announcement.h"

#include <algorithm>

#include "lockstep/core/text.h"

namespace lockstep::host {
namespace {

using detail::concat;

/// One round of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
/// 2014).
std::uint64_t mix(std::uint64_t state, std::uint64_t value) {
  std::uint64_t z = state + 0x9e3779b97f4a7c15 + value;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

std::uint64_t fingerprint(const Operation& operation) {
  std::uint64_t state = static_cast<std::uint64_t>(operation.collective) |
                        static_cast<std::uint64_t>(operation.reduce) << 8 |
                        static_cast<std::uint64_t>(operation.dtype) << 16 |
                        static_cast<std::uint64_t>(static_cast<std::uint32_t>(operation.peer))
                            << 24;
  state = mix(state, operation.count);
  for (const auto count : operation.counts) state = mix(state, count);
  for (const auto extent : operation.shape) state = mix(state, static_cast<std::uint64_t>(extent));
  return state;
}

void announce(Post& post, const Operation& operation, std::uint64_t offset) {
  post.fingerprint = fingerprint(operation);
  post.offset = offset;
  post.count = operation.counts.empty()
                   ? operation.count
                   : operation.part_begin(static_cast<int>(operation.counts.size()));
  post.peer = operation.peer;
  post.collective = static_cast<std::uint8_t>(operation.collective);
  post.reduce = static_cast<std::uint8_t>(operation.reduce);
  post.dtype = static_cast<std::uint8_t>(operation.dtype);
  const std::size_t dimensions = operation.shape.size();
  post.dimensions = static_cast<std::uint8_t>(std::min(dimensions, Post::most_dimensions + 1));
  std::copy_n(operation.shape.begin(), std::min(dimensions, Post::most_dimensions), post.shape);
}

std::string describe(const Post& post) {
  const auto collective = static_cast<Collective>(post.collective);
  std::string text(name(collective));
  if (collective == Collective::barrier) return text;
  if (collective == Collective::all_reduce || collective == Collective::reduce_scatter) {
    text += concat(" ", name(static_cast<ReduceOp>(post.reduce)));
  }
  text += concat(" ", name(static_cast<DType>(post.dtype)));
  if (post.peer >= 0) text += concat(" root ", post.peer);
  if (post.dimensions == 0) return text + concat(" of ", post.count, " elements");
  text += " [";
  for (std::size_t i = 0; i < std::min<std::size_t>(post.dimensions, Post::most_dimensions); ++i) {
    text += concat(i == 0 ? "" : ", ", post.shape[i]);
  }
  return text + (post.dimensions > Post::most_dimensions ? ", …]" : "]");
}

}  // namespace lockstep::host
