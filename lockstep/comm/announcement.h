#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "lockstep/comm/operation.h"
#include "lockstep/comm/source.h"

namespace lockstep::detail {

/// What one member of a group tells the others of a collective: enough to see that all mean the
/// same, and to say what differs. It lies in shared memory and goes over networks as it is.
struct Announcement {
  static constexpr std::size_t most_dimensions = 8;

  std::uint64_t fingerprint;
  Source source;
  std::uint64_t count;
  std::int32_t peer;
  std::uint8_t collective : 4;
  std::uint8_t reduce : 4;
  std::uint8_t dtype;
  std::uint8_t dimensions;  ///< of shape; most_dimensions + 1 for "more"
  std::uint8_t wire;        ///< 1 + the dtype that elements travel as, 0 for their own
  std::int64_t shape[most_dimensions];
};

/// Writes the operation's announcement; of shape no more than it has.
void announce(Announcement& announcement, const Operation& operation);

/// The member at fault when members do not mean the same, and the sentence that names both sides.
struct Difference {
  int rank;
  std::string text;
};

/// What differs between the members' announcements of the group's collective of that number, with
/// the ranks that ranks names; nothing if all are alike. The same on whichever member it is asked.
std::optional<Difference> difference(std::span<const Announcement* const> announcements,
                                     std::span<const int> ranks, std::uint64_t sequence);

}  // namespace lockstep::detail
