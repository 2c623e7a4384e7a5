#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/group.h"

namespace lockstep::inline v0_2::detail {

/// The first line in which ranks differ.
struct LineDifference {
  std::string text;  ///< each variant of the line, with the ranks that pass it
  int rank = -1;     ///< the first rank of the group that differs from the majority
};

/// The first line in which the ranks differ; nullopt when all ranks pass the same lines. Equal
/// lines cost one small collective.
/// Ranks: all of the group. The result is the same on every rank.
std::optional<LineDifference> difference(const Group& group, std::span<const std::string> lines);

/// Checks that all ranks pass the same lines.
/// Ranks: all of the group.
/// Throws: InvalidArgument, on every rank. It has the first line that differs, and the ranks that
/// pass each variant. The group stays usable.
void agree(const Group& group, std::string_view operation, std::span<const std::string> lines);

}  // namespace lockstep::detail
