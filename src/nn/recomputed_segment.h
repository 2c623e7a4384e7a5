#pragma once

#include <any>
#include <cstddef>
#include <functional>
#include <vector>

#include "core/operation_error.h"

namespace lockstep::inline v0_2::detail {

/// A run of a segment of recompute(), which is in Lockstep::extras.
struct SegmentRun {
  bool is_first;                   ///< the first forward, and not its repetition in a backward
  std::vector<std::any>& results;  ///< of once_per_forward() in the first forward
  std::size_t results_used = 0;    ///< by a repetition

  /// Throws: InvalidArgument if the first forward kept no further result.
  const std::any& next_result() {
    if (results_used < results.size()) return results[results_used++];
    throw_invalid("recompute",
                  "got a SyncBatchNorm layer in the second forward that was not in the first, "
                  "expected the same layers: the segment must depend on its inputs and parameters "
                  "only");
  }
};

/// The runs that the calling thread is in, the innermost last. A repetition begins a list of its
/// own, so only the first run of a list can be one.
inline std::vector<SegmentRun*>& segment_runs() {
  thread_local std::vector<SegmentRun*> runs;
  return runs;
}

/// Whether the calling thread runs a segment of recompute() for a backward.
inline bool is_recomputing() {
  const auto& runs = segment_runs();
  return !runs.empty() && !runs.front()->is_first;
}

/// Returns compute()'s result. Within a segment of recompute(), the first forward keeps the result
/// and the second returns it without a call of compute(). For results of collectives.
inline std::any once_per_forward(const std::function<std::any()>& compute) {
  const auto& runs = segment_runs();
  const std::any result = is_recomputing() ? runs.front()->next_result() : compute();
  for (auto* run : runs) {
    if (run->is_first) run->results.push_back(result);
  }
  return result;
}

}  // namespace lockstep::detail
