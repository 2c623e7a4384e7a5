#pragma once

#include <cstddef>
#include <string_view>

namespace lockstep::inline v0_2 {
struct Placement;
}

namespace lockstep::inline v0_2::messages {

/// How an all_reduce moves its bytes. docs/algorithms.md has steps and bytes of both.
enum class Algorithm {
  automatic,
  direct,  ///< each rank receives all inputs of its slice and sums them: fewest steps
  ring     ///< partial sums pass from rank to rank: two partners however many ranks there are, but
           ///< each slice's sum begins at another rank
};

std::string_view name(Algorithm algorithm);

/// The algorithm of a name: "auto", "direct" or "ring".
/// Throws: InvalidArgument listing the valid names.
Algorithm parse_algorithm(std::string_view text);

/// The algorithm that `automatic` selects for an all_reduce between ranks of this placement, by
/// comm/cost.h. Equal arguments give equal results.
Algorithm cheapest(const Placement& placement, std::size_t bytes);

}  // namespace lockstep::messages
