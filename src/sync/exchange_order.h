#pragma once

#include <cstddef>

namespace lockstep::inline v0_2::detail {

/// Slots between two collectives of one exchange.
inline constexpr std::size_t lag = 2;
/// Exchanges of one collective that may be incomplete at the same time. Before the one at position
/// p begins, slot p - 1 waits for the one at p - exchanges_at_once.
inline constexpr std::size_t exchanges_at_once = lag + 1;

/// Whether the exchange at a position issues its next collective in a slot. Slot s comes after the
/// begin of the exchange at position s. The order of collectives thus depends only on positions,
/// never on readiness, and two exchanges are in progress while a rank waits for one.
constexpr bool advances_in_slot(std::size_t slot, std::size_t position) {
  return slot > position && (slot - position) % lag == 0;
}

}  // namespace lockstep::detail
