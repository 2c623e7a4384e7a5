#pragma once

#include <cstdint>
#include <optional>

#include "comm/atomics.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2::detail {

/// An operation in a flight record.
struct FlightOperation {
  std::uint64_t issued;  ///< ticks
  std::uint64_t ended;   ///< ticks; 0 while it is not complete
  std::uint64_t sequence;
  std::uint64_t bytes;   ///< of this rank's part, in the wire dtype
  std::uint64_t source;  ///< the bits of a Source
  std::int32_t peer;     ///< world rank of the root or of the other rank; -1 for none
  std::uint16_t group;   ///< index in FlightFile::groups
  Collective collective;
  DType dtype;  ///< in which elements are sent

  bool operator==(const FlightOperation&) const = default;
};

/// One entry of the ring of a flight record, which other processes read while its rank overwrites
/// it: a sequence lock whose fields are atomic (Boehm, Can seqlocks get along with programming
/// language memory models?, MSPC 2012). The thread that issues an operation writes the entry, the
/// thread that completes it writes `ended`.
template <class Atomics>
class alignas(64) BasicFlightEntry {
 public:
  /// Writes the operation with this number, from 1.
  void write(std::uint64_t number, const FlightOperation& operation) noexcept {
    number_.store(0, Atomics::order(Access::entry_invalidate));
    // A reader that sees one of the fields below then also sees the 0, or a later number.
    Atomics::fence(Access::entry_write_fence);
    const auto order = Atomics::order(Access::entry_write);
    issued_.store(operation.issued, order);
    ended_.store(operation.ended, order);
    sequence_.store(operation.sequence, order);
    bytes_.store(operation.bytes, order);
    source_.store(operation.source, order);
    peer_.store(operation.peer, order);
    group_.store(operation.group, order);
    collective_.store(operation.collective, order);
    dtype_.store(operation.dtype, order);
    number_.store(number, Atomics::order(Access::entry_publish));
  }

  /// Records that the operation with this number is complete, if the entry still has it. Any
  /// thread.
  void end(std::uint64_t number, std::uint64_t ticks) noexcept {
    if (number_.load(Atomics::order(Access::entry_check)) == number) {
      ended_.store(ticks, Atomics::order(Access::entry_write));
    }
  }

  /// The operation with this number; empty if the entry has another, or changes meanwhile.
  std::optional<FlightOperation> read(std::uint64_t number) const noexcept {
    if (number_.load(Atomics::order(Access::entry_read)) != number) return std::nullopt;
    const auto order = Atomics::order(Access::entry_field);
    const FlightOperation operation{.issued = issued_.load(order),
                                    .ended = ended_.load(order),
                                    .sequence = sequence_.load(order),
                                    .bytes = bytes_.load(order),
                                    .source = source_.load(order),
                                    .peer = peer_.load(order),
                                    .group = group_.load(order),
                                    .collective = collective_.load(order),
                                    .dtype = dtype_.load(order)};
    Atomics::fence(Access::entry_read_fence);
    if (number_.load(Atomics::order(Access::entry_check)) != number) return std::nullopt;
    return operation;
  }

  /// The number of the operation; 0 while it is written.
  std::uint64_t number() const noexcept { return number_.load(Atomics::order(Access::entry_read)); }

 private:
  template <class T>
  using Atomic = typename Atomics::template Atomic<T>;

  Atomic<std::uint64_t> number_;  ///< of the rank's operations, from 1; 0 while it is written
  Atomic<std::uint64_t> issued_;
  Atomic<std::uint64_t> ended_;
  Atomic<std::uint64_t> sequence_;
  Atomic<std::uint64_t> bytes_;
  Atomic<std::uint64_t> source_;
  Atomic<std::int32_t> peer_;
  Atomic<std::uint16_t> group_;
  Atomic<Collective> collective_;
  Atomic<DType> dtype_;
};

}  // namespace lockstep::detail
