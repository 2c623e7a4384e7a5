#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "comm/atomics.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2::detail {

/// An operation in a flight record.
struct FlightOperation {
  std::uint64_t issued_at;  ///< ticks
  std::uint64_t ended_at;   ///< ticks; 0 while it is not complete
  std::uint64_t sequence;
  std::uint64_t bytes;        ///< of this rank's part, in the wire dtype
  std::uint64_t source;       ///< the bits of a Source
  std::int32_t peer;          ///< world rank of the root or of the other rank; -1 for none
  std::uint16_t group_index;  ///< index in FlightFile::groups
  Collective collective;
  DType dtype;  ///< in which elements are sent

  /// "all_reduce #17".
  std::string label() const;
  bool operator==(const FlightOperation&) const = default;
};

/// One entry of the ring of a flight record, which other processes read while its rank overwrites
/// it: a sequence lock whose words are atomic (Boehm, Can seqlocks get along with programming
/// language memory models?, MSPC 2012). The thread that issues an operation writes the entry, the
/// thread that completes it writes `ended_at`.
template <class Atomics>
class alignas(64) BasicFlightEntry {
 public:
  /// Writes the operation with this number, from 1.
  void write(std::uint64_t number, const FlightOperation& operation) noexcept {
    number_.store(0, Atomics::order(Access::entry_invalidate));
    // A reader that sees one of the fields below then also sees the 0, or a later number.
    Atomics::fence(Access::entry_write_fence);
    const auto order = Atomics::order(Access::entry_write);
    const auto words = std::bit_cast<Words>(operation);
    for (std::size_t i = 0; i < words.size(); ++i) words_[i].store(words[i], order);
    number_.store(number, Atomics::order(Access::entry_publish));
  }

  /// Records that the operation with this number is complete, if the entry still has it. Any
  /// thread.
  void end(std::uint64_t number, std::uint64_t ticks) noexcept {
    if (number_.load(Atomics::order(Access::entry_check)) == number) {
      words_[ended_word].store(ticks, Atomics::order(Access::entry_write));
    }
  }

  /// The operation with this number; empty if the entry has another, or changes meanwhile.
  std::optional<FlightOperation> read(std::uint64_t number) const noexcept {
    if (number_.load(Atomics::order(Access::entry_read)) != number) return std::nullopt;
    const auto order = Atomics::order(Access::entry_field);
    Words words{};
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = words_[i].load(order);
    Atomics::fence(Access::entry_read_fence);
    if (number_.load(Atomics::order(Access::entry_check)) != number) return std::nullopt;
    return std::bit_cast<FlightOperation>(words);
  }

  /// The number of the operation; 0 while it is written.
  std::uint64_t number() const noexcept { return number_.load(Atomics::order(Access::entry_read)); }

 private:
  using Atomic = typename Atomics::template Atomic<std::uint64_t>;
  using Words = std::array<std::uint64_t, sizeof(FlightOperation) / sizeof(std::uint64_t)>;
  static constexpr auto ended_word = offsetof(FlightOperation, ended_at) / sizeof(std::uint64_t);

  Atomic number_;  ///< of the rank's operations, from 1; 0 while it is written
  Atomic words_[std::tuple_size_v<Words>];  ///< of the FlightOperation
};

}  // namespace lockstep::detail
