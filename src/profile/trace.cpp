#include "profile/trace.h"

#include "core/operation_error.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {
namespace {

/// Spans of work with a smaller gap are merged, such as those of a staged collective. Units:
/// nanoseconds.
constexpr std::int64_t max_merged_gap = 2000;

}  // namespace

Trace::Trace(std::size_t capacity) : spans_(capacity) {
  if (capacity == 0) throw_invalid("trace", "got a capacity of 0 spans, expected at least 1");
  if (this_threads_trace != nullptr) {
    throw_invalid("trace", "got a second trace in this thread, expected at most one at a time");
  }
  this_threads_trace = this;
  this_threads_work_observer = this;
}

Trace::~Trace() {
  if (this_threads_trace != this) return;
  this_threads_trace = nullptr;
  this_threads_work_observer = nullptr;
}

void Trace::add(const TraceSpan& span) noexcept {
  if (added_ > 0 && span.kind == TraceSpan::Kind::working) {
    auto& last = spans_[(added_ - 1) % spans_.size()];
    if (last.kind == TraceSpan::Kind::working && span.begin - last.end < max_merged_gap) {
      last.end = span.end;
      return;
    }
  }
  spans_[added_++ % spans_.size()] = span;
}

void Trace::worked(std::chrono::steady_clock::time_point begin,
                   std::chrono::steady_clock::time_point end) noexcept {
  add({.begin = begin.time_since_epoch() / std::chrono::nanoseconds(1),
       .end = end.time_since_epoch() / std::chrono::nanoseconds(1)});
}

std::vector<TraceSpan> Trace::spans() const {
  std::vector<TraceSpan> all;
  const auto kept = added_ - lost();
  all.reserve(kept);
  for (auto i = lost(); i < added_; ++i) all.push_back(spans_[i % spans_.size()]);
  return all;
}

}  // namespace lockstep::detail
