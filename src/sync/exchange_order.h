#pragma once

#include <cstddef>

namespace lockstep::inline v0_2::detail {

/// Whether the exchange at a position issues its next collective in a slot. Slot s comes after the
/// begin of the exchange at position s. The order of collectives thus depends only on positions,
/// never on readiness, and two exchanges are in progress while a rank waits for one.
constexpr bool advances_in_slot(std::size_t slot, std::size_t position) {
  constexpr std::size_t lag = 2;
  return slot > position && (slot - position) % lag == 0;
}

}  // namespace lockstep::detail
