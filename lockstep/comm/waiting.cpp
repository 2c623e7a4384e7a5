#include "lockstep/comm/waiting.h"

#include <unistd.h>

#include <algorithm>

#include "lockstep/core/error.h"
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

std::string list_ranks(std::span<const int> ranks,
                       const std::function<std::string_view(int)>& note) {
  constexpr std::size_t most = 16;
  if (ranks.empty()) return "the bytes of ranks that have come";
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), most); ++i) {
    text += concat(i == 0 ? "" : ", ", ranks[i], note ? note(ranks[i]) : "");
  }
  if (ranks.size() > most) text += concat(" and ", ranks.size() - most, " more");
  return text;
}

OneThread::OneThread(std::atomic<bool>& used, std::string_view backend, int rank) : used_(used) {
  if (used.exchange(true, std::memory_order_acquire)) {
    throw InvalidArgument(concat(backend, ": rank ", rank,
                                 " is used by two threads at once; its groups belong to one thread "
                                 "at a time"));
  }
}

}  // namespace lockstep::detail
