#include "lockstep/comm/waiting.h"

#include <unistd.h>

#include <algorithm>

#include "lockstep/core/error.h"
#include "lockstep/core/rank_list.h"
#include "lockstep/core/text.h"

namespace lockstep::detail {

bool fit_cores(int ranks, int threads_per_rank, int cores) {
  const int known = cores > 0 ? cores : static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  return ranks * threads_per_rank <= known;
}

std::chrono::milliseconds wait_limit(const Operation& operation, std::chrono::milliseconds world) {
  // Longer than this is for ever.
  constexpr std::chrono::milliseconds longest = std::chrono::hours(24 * 365);
  return std::min(operation.timeout.count() > 0 ? operation.timeout : world, longest);
}

std::string awaited(std::span<const int> ranks, const std::function<std::string_view(int)>& note) {
  return ranks.empty() ? "the bytes of ranks that have come" : rank_list(ranks, note);
}

OneThread::OneThread(std::atomic<bool>& used, std::string_view backend, int rank) : used_(used) {
  if (used.exchange(true, std::memory_order_acquire)) {
    throw InvalidArgument(concat(backend, ": rank ", rank,
                                 " is used by two threads at once; its groups belong to one thread "
                                 "at a time"));
  }
}

}  // namespace lockstep::detail
