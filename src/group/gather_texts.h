#pragma once

#include <string>
#include <vector>

#include "lockstep/group.h"

namespace lockstep::inline v0_2::detail {

/// Every rank's text, on all of them.
/// Ranks: all.
std::vector<std::string> gather(const std::string& own, const Group& group);

}  // namespace lockstep::detail
