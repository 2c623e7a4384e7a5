#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/waiting.h"
#include "core/operation_error.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2 {

/// An activity of a rank's thread, or an operation in flight. Units: nanoseconds of the steady
/// clock, which all processes of a host share.
struct TraceSpan {
  enum class Kind : std::uint8_t {
    request,  ///< a collective, from its issue to the end of its wait()
    waiting,  ///< in wait() for that collective; may contain spans of work
    working,  ///< reducing and copying
    ready,    ///< the time of a bucket's last gradient; begin == end
    backward  ///< from the first gradient of a backward to the end of all exchanges
  };
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::uint64_t bytes = 0;  ///< of a request
  std::int32_t bucket = -1;
  Kind kind = Kind::working;
  Collective collective = Collective::barrier;
};

namespace detail {

class Trace;

/// This thread's trace, or null.
inline constinit thread_local Trace* this_threads_trace = nullptr;

/// Records spans of the thread that constructs it. Keeps the newest in memory that is allocated at
/// the start. Only that thread may use and destroy it.
class Trace final : public WorkObserver {
 public:
  /// Throws: InvalidArgument if this thread already has a trace, or if capacity is 0.
  explicit Trace(std::size_t capacity) : spans_(capacity) {
    if (capacity == 0) throw_invalid("trace", "got a capacity of 0 spans, expected at least 1");
    if (this_threads_trace != nullptr) {
      throw_invalid("trace", "got a second trace in this thread, expected at most one at a time");
    }
    this_threads_trace = this;
    this_threads_work_observer = this;
  }
  ~Trace() {
    if (this_threads_trace != this) return;
    this_threads_trace = nullptr;
    this_threads_work_observer = nullptr;
  }
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  void add(const TraceSpan& span) noexcept {
    // Spans of work with a smaller gap are merged, such as those of a staged collective. Units: ns.
    constexpr std::int64_t max_merged_gap = 2000;
    if (added_ > 0 && span.kind == TraceSpan::Kind::working) {
      auto& last = spans_[(added_ - 1) % spans_.size()];
      if (last.kind == TraceSpan::Kind::working && span.begin - last.end < max_merged_gap) {
        last.end = span.end;
        return;
      }
    }
    spans_[added_++ % spans_.size()] = span;
  }
  void worked(std::chrono::steady_clock::time_point begin,
              std::chrono::steady_clock::time_point end) noexcept override {
    add({.begin = begin.time_since_epoch() / std::chrono::nanoseconds(1),
         .end = end.time_since_epoch() / std::chrono::nanoseconds(1)});
  }
  /// The recorded spans in order of their end.
  std::vector<TraceSpan> spans() const {
    std::vector<TraceSpan> all;
    const auto kept = added_ - lost();
    all.reserve(kept);
    for (auto i = lost(); i < added_; ++i) all.push_back(spans_[i % spans_.size()]);
    return all;
  }
  /// Number of spans that newer ones have overwritten.
  std::uint64_t lost() const { return added_ > spans_.size() ? added_ - spans_.size() : 0; }

 private:
  std::vector<TraceSpan> spans_;
  std::uint64_t added_ = 0;
};

inline std::int64_t trace_clock() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

/// Records that all gradients of a bucket are ready. Returns the bucket.
inline std::size_t trace_ready(std::size_t bucket) {
  if (this_threads_trace == nullptr) return bucket;
  const auto now = trace_clock();
  this_threads_trace->add({.begin = now,
                           .end = now,
                           .bucket = static_cast<std::int32_t>(bucket),
                           .kind = TraceSpan::Kind::ready});
  return bucket;
}

/// Records a backward from its construction to its destruction.
class TraceBackward {
 public:
  TraceBackward() = default;
  ~TraceBackward() {
    if (begun_ == 0 || this_threads_trace == nullptr) return;
    this_threads_trace->add(
        {.begin = begun_, .end = trace_clock(), .kind = TraceSpan::Kind::backward});
  }
  TraceBackward(const TraceBackward&) = delete;
  TraceBackward& operator=(const TraceBackward&) = delete;

 private:
  std::int64_t begun_ = this_threads_trace != nullptr ? trace_clock() : 0;
};

}  // namespace detail
}  // namespace lockstep
