#pragma once

#include <string>
#include <vector>

#include "comm/agreement.h"
#include "lockstep/group.h"

namespace lockstep::inline v0_2::detail {

/// Gathers the values of all ranks of a Group on every rank, also on devices. Blocks.
/// Ranks: all.
template <class Value>
std::vector<Value> gather_values(const Value& own, const Group& group) {
  return gather_values(own, group.host().communicator());
}

/// Gathers the texts of all ranks of a Group on every rank, also on devices. Blocks.
/// Ranks: all.
inline std::vector<std::string> gather(const std::string& own, const Group& group) {
  return gather(own, group.host().communicator());
}

}  // namespace lockstep::detail
