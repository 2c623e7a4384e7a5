#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "comm/operation.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2::detail {

/// The properties that must be equal for a send and its matching recv.
struct MessageTerms {
  DType dtype;
  std::uint64_t count;
  std::uint32_t tag;
  bool is_announcement = false;  ///< of a message that a device sends
  bool operator==(const MessageTerms&) const = default;

  /// Bytes that the message itself sends.
  std::size_t bytes() const { return is_announcement ? 0 : count * size_of(dtype); }
};

inline MessageTerms terms_of(const Operation& operation) {
  return {.dtype = operation.dtype,
          .count = operation.announced().count,
          .tag = operation.tag,
          .is_announcement = operation.issue.part_of != nullptr};
}

/// The error text about message `number` between world ranks from and to, whose terms differ.
std::string describe_difference(std::uint64_t number, int from, int to,
                                const MessageTerms& expected, const MessageTerms& got);

/// The error text about a message from a world rank for whose copy there is no memory.
std::string no_memory_for_early(std::size_t bytes, std::uint32_t tag, int from);

/// One member's description of a collective. Members compare their announcements to verify that all
/// issue the same collective, and to report a difference. It is stored in shared memory and sent
/// over networks as raw bytes.
struct Announcement {
  static constexpr std::size_t most_dimensions = 8;

  std::uint64_t fingerprint;
  Source source;
  std::uint64_t count;
  std::int32_t peer;
  std::uint8_t collective : 4;
  std::uint8_t reduce : 4;
  std::uint8_t dtype;
  std::uint8_t dimensions;  ///< of shape; most_dimensions + 1 if it has more
  std::uint8_t wire;        ///< 1 + the wire dtype; 0 for none
  std::int64_t shape[most_dimensions];
  // Of an all_to_all with counts of its own, in a message to one member:
  std::uint64_t sent;      ///< elements for that member
  std::uint64_t expected;  ///< elements from that member
};

/// Writes the operation's announcement. Only as many entries of `shape` are written as there are
/// dimensions.
void announce(Announcement& announcement, const Operation& operation);

/// " of group 1 (ranks 0, 2)", for error texts; empty for the world, whose number is 0. ranks: the
/// members' world ranks; empty if they are not known.
std::string of_group(int number, std::span<const int> ranks);

/// The error text about a collective of a group that differs between its ranks, as `what` says. If
/// the collective is a stage of another one, it names that one.
std::string describe_difference(const Operation& operation, int group, std::span<const int> ranks,
                                std::string_view what);

/// The member whose announcement differs from the others', and `what` of the error text, which
/// names both sides.
struct Difference {
  int rank;
  std::string text;
};

/// Compares the members' announcements of a collective; nullopt if all are equal. ranks are the
/// members' world ranks. Every member gets the same result.
std::optional<Difference> difference(std::span<const Announcement* const> announcements,
                                     std::span<const int> ranks);

/// Elements that a member sends to another one in an all_to_all, and expects from it.
struct SentAndExpected {
  std::uint64_t sent;
  std::uint64_t expected;
};
/// Compares the counts of member `own` of an all_to_all with those of the others: theirs() returns
/// what a member sends to it and expects from it. The rank at fault is the one that sends.
std::optional<Difference> difference_of_counts(
    const Operation& operation, int own, std::span<const int> ranks,
    const std::function<SentAndExpected(int member)>& theirs);

}  // namespace lockstep::detail
