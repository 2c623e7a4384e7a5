#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/group.h"

namespace lockstep::inline v0_2::detail {

/// The first line in which ranks differ.
struct LineDifference {
  std::string text;  ///< who holds which
  int rank = -1;     ///< the first rank of the group whose line is not that of most ranks
};

/// The first line in which the ranks differ, and who holds which; nothing when all pass the same
/// lines, which costs one small collective.
/// Ranks: all of the group; the same answer on every rank.
std::optional<LineDifference> difference(const Group& group, std::span<const std::string> lines);

/// Checks that all ranks pass the same lines.
/// Ranks: all of the group.
/// Throws: InvalidArgument, on every rank, naming the first line that differs and who holds which.
/// The group stays usable.
void agree(const Group& group, std::string_view where, std::span<const std::string> lines);

}  // namespace lockstep::detail
