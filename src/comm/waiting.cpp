#include "comm/waiting.h"

#include <unistd.h>

#include <algorithm>

#include "core/deadline.h"
#include "core/text.h"

namespace lockstep::inline v0_2::detail {

bool fit_cores(int ranks, int threads_per_rank, int cores) {
  const int known = cores > 0 ? cores : static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  return ranks * threads_per_rank <= known;
}

std::chrono::milliseconds wait_limit(const Operation& operation, std::chrono::milliseconds world) {
  const auto own = operation.issue.timeout;
  return std::min(own.count() > 0 ? own : world, Deadline::longest);
}

std::string missing_text(std::span<const int> ranks,
                         const std::function<std::string_view(int)>& note) {
  return ranks.empty() ? "data that other ranks have sent" : rank_list(ranks, note);
}

int lowest(std::span<const int> ranks) {
  return ranks.empty() ? -1 : *std::ranges::min_element(ranks);
}

namespace {

thread_local std::chrono::nanoseconds done{};

}  // namespace

std::chrono::nanoseconds work_done() { return done; }

WorkTimer::WorkTimer(std::chrono::nanoseconds& of_operation)
    : of_operation_(of_operation), begin_(std::chrono::steady_clock::now()) {}

WorkTimer::~WorkTimer() {
  const auto end = std::chrono::steady_clock::now();
  of_operation_ += end - begin_;
  done += end - begin_;
  if (this_threads_work_observer != nullptr) this_threads_work_observer->worked(begin_, end);
}

}  // namespace lockstep::detail
