#pragma once

#include <optional>
#include <span>
#include <string>

#include "core/error_record.h"

namespace lockstep::inline v0_2::launch {

/// All that is known of one rank of a failed job.
struct Account {
  bool failed = false;   ///< it ended with an error, or by a signal that the launcher did not send
  bool crashed = false;  ///< that was a signal
  bool late = false;     ///< others had failed a while before
  bool raised_failure = false;  ///< the world's failure was raised in it, which another rank caused
  bool wrote_error = false;     ///< something to stderr
  std::optional<detail::ErrorRecord> error = {};
};

/// The rank that has the cause of a failed job; none when no rank failed. recorded is the rank that
/// the ranks themselves recorded in their world. Of several ranks with errors of their own the
/// world records the one that leaves first. A rank whose error can be read then takes precedence
/// over it.
///
/// Ranks that fail together end in any order, so the order decides nothing by itself. A rank with
/// an error of its own comes before one that failed without a word, and both before ranks that
/// repeat or raise what another rank caused. Among equals, one that wrote to stderr comes first,
/// then the lowest number.
std::optional<int> rank_at_fault(std::span<const Account> ranks, std::optional<int> recorded);

}  // namespace lockstep::launch
