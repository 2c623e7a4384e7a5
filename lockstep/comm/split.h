#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep::detail {

/// What a rank tells the others at a split().
struct SplitChoice {
  std::int64_t color;
  std::int64_t key;
  std::int64_t own;  ///< whatever else the backend wants known
};

/// Every rank's choice, by rank. Collective.
std::vector<SplitChoice> exchange_choices(Communicator& group, const SplitChoice& mine);

/// The ranks of that color, ordered by (key, rank); none of a negative one.
std::vector<int> ranks_of_color(std::int64_t color, std::span<const SplitChoice> choices);

}  // namespace lockstep::detail
