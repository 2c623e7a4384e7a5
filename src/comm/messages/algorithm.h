#pragma once

#include <cstddef>
#include <string_view>

namespace lockstep::inline v0_2 {
struct Placement;
}

namespace lockstep::inline v0_2::messages {

/// The algorithm of an all_reduce over messages. docs/algorithms.md has the steps and bytes of
/// both.
enum class Algorithm {
  automatic,
  direct,  ///< each rank receives all inputs of its slice and reduces them: fewest steps
  ring     ///< partial results pass around a ring: each rank has two partners for any number of
           ///< ranks, but the sums of different slices begin at different ranks
};

std::string_view name(Algorithm algorithm);

/// The algorithm with this name: "auto", "direct" or "ring".
/// Throws: InvalidArgument listing the valid names.
Algorithm parse_algorithm(std::string_view text);

/// The faster algorithm for an all_reduce of `bytes` between ranks of this placement, by the cost
/// model of comm/cost/cost.h; `automatic` selects it. A pure function: all ranks get the same
/// result.
Algorithm cheapest(const Placement& placement, std::size_t bytes);

}  // namespace lockstep::messages
