#pragma once

#include <string>
#include <vector>

#include "comm/agreement.h"
#include "lockstep/group.h"

namespace lockstep::inline v0_2::detail {

/// The same over the ranks of a Group, also on devices.
template <class Value>
std::vector<Value> gather_values(const Value& own, const Group& group) {
  return gather_values(own, group.host().communicator());
}

/// The same over the ranks of a Group, also on devices.
inline std::vector<std::string> gather(const std::string& own, const Group& group) {
  return gather(own, group.host().communicator());
}

}  // namespace lockstep::detail
