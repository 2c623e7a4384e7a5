#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "comm/communicator.h"

namespace lockstep::inline v0_2::detail {

/// Gathers the values of all ranks on every rank, as bytes. Blocks.
/// Ranks: all.
template <class Value>
std::vector<Value> gather_values(const Value& own, Communicator& group) {
  static_assert(std::is_trivially_copyable_v<Value>);
  std::vector<Value> all(static_cast<std::size_t>(group.size()));
  group.all_gather(&own, all.data(), sizeof own, DType::u8).wait();
  return all;
}

/// Gathers the texts of all ranks on every rank. Blocks.
/// Ranks: all.
std::vector<std::string> gather(const std::string& own, Communicator& group);

/// The first line in which ranks differ.
struct LineDifference {
  std::string text;  ///< each variant of the line, with the ranks that pass it
  int rank = -1;     ///< world rank of the first one that differs from the majority
};

/// The first line in which the ranks differ; nullopt when all ranks pass the same lines. Equal
/// lines cost one small collective. Sets `highest`, if it is not null, to its highest value of all
/// ranks.
/// Ranks: all of the group. The result is the same on every rank.
std::optional<LineDifference> difference(Communicator& group, std::span<const std::string> lines,
                                         std::int64_t* highest = nullptr);

}  // namespace lockstep::detail
