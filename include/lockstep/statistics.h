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
  /// Reducing and copying this rank's share; of a bucket's last row also what its strategy does
  /// between collectives.
  std::chrono::nanoseconds working{};
  /// In which it was under way, and nothing that was counted before: over MPI, where a thread makes
  /// progress, from its begin until it was complete; else within wait().
  std::chrono::nanoseconds communicating{};
  std::chrono::nanoseconds hidden{};  ///< of that, what lay before the wait for it
};

/// One row for each collective and bucket that was issued, in the order of their first.
using Statistics = std::vector<CollectiveStatistics>;

/// A table of the rows and their sum, for people. Where a strategy sent less than the buckets hold,
/// or more, a last line says by how much; where exchanges were hidden behind other work, another
/// says what part.
std::string to_text(std::span<const CollectiveStatistics> rows);

}  // namespace lockstep
