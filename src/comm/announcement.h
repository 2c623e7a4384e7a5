#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "comm/operation.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2::detail {

/// The properties in which a send and the recv that takes it must agree.
struct MessageTerms {
  DType dtype;
  std::uint64_t count;
  std::uint32_t tag;
  bool operator==(const MessageTerms&) const = default;
};

inline MessageTerms terms_of(const Operation& operation) {
  return {.dtype = operation.dtype, .count = operation.count, .tag = operation.tag};
}

/// The sentence about a message, between world ranks, whose two ends do not agree.
std::string describe_difference(std::uint64_t number, int from, int to,
                                const MessageTerms& expected, const MessageTerms& got);

/// One member's description of a collective: enough to verify that all members issue the same one,
/// and to report a difference. It lies in shared memory and is sent over networks as it is.
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
  std::uint8_t wire;        ///< 1 + the wire dtype, 0 for the elements' own
  std::int64_t shape[most_dimensions];
};

/// Writes the operation's announcement; of shape no more than it has.
void announce(Announcement& announcement, const Operation& operation);

/// The member at fault when members do not mean the same, and the sentence that names both sides.
struct Difference {
  int rank;
  std::string text;
};

/// The difference between the members' announcements of the group's collective with that sequence
/// number; none if all are alike. ranks names the members. Every member gets the same result.
std::optional<Difference> difference(std::span<const Announcement* const> announcements,
                                     std::span<const int> ranks, std::uint64_t sequence);

}  // namespace lockstep::detail
