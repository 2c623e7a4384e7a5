#include "comm/working.h"

namespace lockstep::inline v0_2::detail {
namespace {

thread_local std::chrono::nanoseconds done{};

}  // namespace

std::chrono::nanoseconds work_done() { return done; }

Working::Working(std::chrono::nanoseconds& of_operation)
    : of_operation_(of_operation), begin_(std::chrono::steady_clock::now()) {}

Working::~Working() {
  const auto end = std::chrono::steady_clock::now();
  of_operation_ += end - begin_;
  done += end - begin_;
  if (this_threads_work_observer != nullptr) this_threads_work_observer->worked(begin_, end);
}

}  // namespace lockstep::detail
