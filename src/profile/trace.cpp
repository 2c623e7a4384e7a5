#include "profile/trace.h"

#include "core/operation_error.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {
namespace {

/// Work in pieces, as a staged collective's, is one span while no more lies between two of them.
/// Units: nanoseconds.
constexpr std::int64_t same_work = 2000;

}  // namespace

Trace::Trace(std::size_t most) : spans_(most) {
  if (most == 0) throw_invalid("trace", "got room for 0 spans, expected at least 1");
  if (this_threads_trace != nullptr) {
    throw_invalid("trace", "this thread keeps one already, expected one at a time");
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
    if (last.kind == TraceSpan::Kind::working && span.begin - last.end < same_work) {
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
