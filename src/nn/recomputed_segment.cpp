#include "nn/recomputed_segment.h"

namespace lockstep::inline v0_2::detail {

std::vector<SegmentRun*>& segment_runs() {
  thread_local std::vector<SegmentRun*> runs;
  return runs;
}

bool is_recomputing() {
  const auto& runs = segment_runs();
  return !runs.empty() && !runs.front()->is_first();
}

std::any once_per_forward(const std::function<std::any()>& compute) {
  const auto& runs = segment_runs();
  const std::any result = is_recomputing() ? runs.front()->next_result() : compute();
  for (auto* run : runs) {
    if (run->is_first()) run->keep_result(result);
  }
  return result;
}

}  // namespace lockstep::detail
