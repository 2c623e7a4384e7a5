#pragma once

#include <string>
#include <vector>

#include "lockstep/group.h"

namespace lockstep::inline v0_2::detail {

/// Gathers the texts of all ranks on every rank.
/// Ranks: all.
std::vector<std::string> gather(const std::string& own, const Group& group);

}  // namespace lockstep::detail
