#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"

namespace lockstep::inline v0_2::detail {

/// The values that ranks exchange in a split().
struct SplitChoice {
  std::int64_t color;
  std::int64_t key;
  std::int64_t own;  ///< a value of the backend
};

/// The choices of all ranks, in rank order. Collective.
std::vector<SplitChoice> exchange_choices(Communicator& group, const SplitChoice& mine);

/// The result of a split() into numbered groups on one rank.
struct NumberedSplit {
  /// Number of the new group. Higher than the number of any group of its ranks, so a rank's groups
  /// have different numbers.
  std::int64_t number;
  std::vector<int> ranks;  ///< of the new group, by (key, rank); empty for a negative color
  int rank;                ///< this rank's index in ranks
};

/// last_number: the highest number of the groups that this rank is or was a member of. Collective.
NumberedSplit split_numbered(Communicator& group, int color, int key, std::int64_t last_number);

/// A number for a new group of all ranks of this group, higher than the last_number of each.
/// Collective. last_number: the highest number of the groups that this rank is or was a member of.
int agree_on_number(Communicator& group, int last_number);

/// members[rank] for each of the ranks.
std::vector<int> at_ranks(std::span<const int> members, std::span<const int> ranks);

}  // namespace lockstep::detail
