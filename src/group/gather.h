#pragma once

#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include "comm/communicator.h"
#include "lockstep/group.h"

namespace lockstep::inline v0_2::detail {

/// Gathers the values of all ranks on every rank, as bytes. Blocks, also on devices.
/// Ranks: all.
template <class Value>
std::vector<Value> gather_values(const Value& own, const Group& group) {
  static_assert(std::is_trivially_copyable_v<Value>);
  std::vector<Value> all(static_cast<std::size_t>(group.size()));
  group.host().communicator().all_gather(&own, all.data(), sizeof own, DType::u8).wait();
  return all;
}

/// Gathers the texts of all ranks on every rank.
/// Ranks: all.
std::vector<std::string> gather(const std::string& own, const Group& group);

}  // namespace lockstep::detail
