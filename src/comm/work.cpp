#include "lockstep/work.h"

#include <algorithm>
#include <exception>

#include "comm/ledger.h"
#include "comm/request.h"
#include "comm/trace.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {

Work& Work::operator=(Work&& other) noexcept {
  if (this != &other) {
    finish();
    request_ = std::move(other.request_);
    row_ = std::move(other.row_);
    bytes_ = other.bytes_;
    begun_ = other.begun_;
    is_part_ = other.is_part_;
  }
  return *this;
}

void Work::count_in(std::shared_ptr<CollectiveStatistics> row, std::uint64_t bytes, bool is_part) {
  row_ = std::move(row);
  bytes_ = bytes;
  is_part_ = is_part;
  begun_ = !is_part && detail::this_threads_trace != nullptr ? detail::trace_clock() : 0;
}

void Work::count(std::chrono::steady_clock::time_point begin, std::chrono::nanoseconds work,
                 const detail::Request& request) {
  const auto now = std::chrono::steady_clock::now();
  // Work of this thread during the wait, for this operation or others, does not count as waiting.
  const auto waited = now - begin - work;
  row_->waiting += waited;
  row_->working += request.worked();
  if (!is_part_) {
    detail::count_wait(waited);
    count_overlap(begin, now, request.interval());
  }
  if (begun_ == 0 || detail::this_threads_trace == nullptr) return;
  TraceSpan span{.begin = begin.time_since_epoch() / std::chrono::nanoseconds(1),
                 .end = now.time_since_epoch() / std::chrono::nanoseconds(1),
                 .bytes = bytes_,
                 .bucket = row_->bucket,
                 .kind = TraceSpan::Kind::waiting,
                 .collective = row_->collective};
  constexpr std::int64_t least = 1000;  // ns: what was there already was not waited for
  if (span.end - span.begin >= least) detail::this_threads_trace->add(span);
  span.begin = begun_;
  span.kind = TraceSpan::Kind::request;
  detail::this_threads_trace->add(span);
}

void Work::count_overlap(std::chrono::steady_clock::time_point begin,
                         std::chrono::steady_clock::time_point end,
                         const detail::RequestInterval& interval) {
  const bool alone = interval.complete.time_since_epoch().count() != 0;
  const auto [begun, complete] = alone ? interval : detail::RequestInterval{begin, end};
  const auto from = detail::count_communication(begun, complete);
  const auto until = std::max(complete, from);
  row_->communicating += until - from;
  row_->hidden += std::clamp(begin, from, until) - from;
}

void Work::wait() {
  // An operation that failed is not waited for again; one that another thread waits for still is.
  const auto request = std::move(request_);
  if (request == nullptr) return;
  const auto begin = std::chrono::steady_clock::now();
  const auto work_before = detail::work_done();
  try {
    request->wait();
    if (row_ == nullptr) return;
    count(begin, detail::work_done() - work_before, *request);
    row_.reset();
  } catch (const InvalidArgument&) {
    request_ = request;
    throw;
  }
}

bool Work::complete() const { return request_ == nullptr || request_->complete(); }

void Work::check() {
  if (request_ != nullptr) request_->check();
}

std::chrono::nanoseconds Work::worked() const {
  return request_ != nullptr ? request_->worked() : std::chrono::nanoseconds();
}

std::vector<int> Work::missing() const {
  return request_ != nullptr ? request_->missing() : std::vector<int>();
}

bool Work::ready() { return request_ == nullptr || request_->test(); }

void Work::finish() noexcept {
  if (request_ == nullptr) return;
  if (std::uncaught_exceptions() > 0) {
    request_->abandon();
    return;
  }
  try {
    wait();
  } catch (...) {
    // A failed wait has ended the world, which raises the cause at the group's next call.
  }
}

}  // namespace lockstep
