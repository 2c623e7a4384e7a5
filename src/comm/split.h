#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"

namespace lockstep::inline v0_2::detail {

/// The values that a rank sends to the others in a split().
struct SplitChoice {
  std::int64_t color;
  std::int64_t key;
  std::int64_t own;  ///< whatever else the backend wants known
};

/// Every rank's choice, by rank. Collective.
std::vector<SplitChoice> exchange_choices(Communicator& group, const SplitChoice& mine);

/// The ranks of that color, ordered by (key, rank); none of a negative one.
std::vector<int> ranks_of_color(std::int64_t color, std::span<const SplitChoice> choices);

/// One rank's part in a split() whose groups have numbers.
struct NumberedSplit {
  /// Higher than that of any group that a rank is in, so no two groups of a rank have the same.
  std::int64_t number;
  std::vector<int> ranks;  ///< of the new group; none of a negative color
  int rank;                ///< this one's place among them
};

/// last_number: of the groups that this rank is or was in, the highest. Collective.
NumberedSplit split_numbered(Communicator& group, int color, int key, std::int64_t last_number);

/// Those members that the ranks are.
std::vector<int> picked(std::span<const int> members, std::span<const int> ranks);

}  // namespace lockstep::detail
