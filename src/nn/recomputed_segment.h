#pragma once

#include <any>
#include <functional>
#include <vector>

namespace lockstep::inline v0_2::detail {

/// A run of a segment of recompute(), which is in Lockstep::extras.
class SegmentRun {
 public:
  explicit SegmentRun(bool is_first) : is_first_(is_first) {}

  /// Whether it is the first forward, and not its repetition in a backward.
  bool is_first() const { return is_first_; }
  /// Keeps a result of once_per_forward() of the first forward.
  virtual void keep_result(const std::any& result) = 0;
  /// The next result that the first forward kept.
  virtual const std::any& next_result() = 0;

 protected:
  ~SegmentRun() = default;

 private:
  bool is_first_;
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
  return !runs.empty() && !runs.front()->is_first();
}

/// Returns compute()'s result. Within a segment of recompute(), the first forward keeps the result
/// and the second returns it without a call of compute(). For results of collectives.
inline std::any once_per_forward(const std::function<std::any()>& compute) {
  const auto& runs = segment_runs();
  const std::any result = is_recomputing() ? runs.front()->next_result() : compute();
  for (auto* run : runs) {
    if (run->is_first()) run->keep_result(result);
  }
  return result;
}

}  // namespace lockstep::detail
