#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/types.h"

namespace lockstep::inline v0_2 {

/// Cost of one kind of collective on this rank so far.
struct CollectiveStatistics {
  Collective collective = Collective::barrier;
  int bucket = -1;  ///< the gradient bucket that it was issued for, or -1
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;             ///< of this rank's part, in the form in which it travels
  std::uint64_t dense_bytes = 0;       ///< of what they stand for: more, where it is compressed
  std::chrono::nanoseconds waiting{};  ///< for other ranks, within wait()
  /// Time in which this rank reduced and copied its share. The last row of a bucket also counts
  /// what its strategy does between collectives.
  std::chrono::nanoseconds working{};
  /// Time in which the operation was under way, without time that another operation has counted
  /// already. Over MPI, where a thread makes progress, it lasts from the begin of the operation
  /// until it is complete; else it is the time within wait().
  std::chrono::nanoseconds communicating{};
  std::chrono::nanoseconds hidden{};  ///< the part of communicating before wait() began
};

/// One row for each collective and bucket that was issued, in the order of their first.
using Statistics = std::vector<CollectiveStatistics>;

/// A table of the rows and their sum, for people. Where a strategy sent less than the buckets hold,
/// or more, a last line says by how much; where exchanges were hidden behind other work, another
/// says what part.
std::string to_text(std::span<const CollectiveStatistics> rows);

}  // namespace lockstep
