#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/types.h"

namespace lockstep::inline v0_2 {

/// Cost of the collectives of one kind and bucket on this rank so far.
struct CollectiveStatistics {
  Collective collective = Collective::barrier;
  int bucket = -1;  ///< index of the gradient bucket; -1 for no bucket
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;             ///< of this rank's part, in the wire dtype
  std::uint64_t dense_bytes = 0;       ///< the same part without compression
  std::chrono::nanoseconds waiting{};  ///< time within wait() in which other ranks were waited for
  /// Time in which this rank reduced and copied its share. The last row of a bucket also includes
  /// the strategy's computation between collectives.
  std::chrono::nanoseconds working{};
  /// Time in which the operations were in progress. Overlapping operations count an instant once.
  /// If a progress thread advances operations (MPI, TCP), an operation is in progress from its
  /// begin until it is complete, else within wait() only.
  std::chrono::nanoseconds communicating{};
  std::chrono::nanoseconds hidden{};  ///< the part of `communicating` before wait() began
};

/// One row for each pair of collective and bucket, in the order in which they were first issued.
using Statistics = std::vector<CollectiveStatistics>;

/// Formats the rows and their sum as a table. If a strategy sent fewer or more bytes than the
/// buckets have, a last line gives the ratio. If communication overlapped with other work, another
/// line gives the overlapped share.
std::string to_text(std::span<const CollectiveStatistics> rows);

}  // namespace lockstep
