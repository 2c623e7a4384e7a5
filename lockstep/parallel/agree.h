#pragma once

#include <span>
#include <string>
#include <string_view>

#include "lockstep/group.h"

namespace lockstep::detail {

/// Checks that all ranks pass the same lines; costs one small collective when they do.
/// Ranks: all of the group.
/// Throws: InvalidArgument, on every rank, naming the first line that differs and who holds which.
/// The group stays usable.
void agree(const Group& group, std::string_view where, std::span<const std::string> lines);

}  // namespace lockstep::detail
