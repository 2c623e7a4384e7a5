#include "comm/atomics.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace lockstep::inline v0_2::detail {

void StdAtomics::wait(const Atomic<std::uint32_t>& word, std::uint32_t expected,
                      std::chrono::nanoseconds longest) noexcept {
  if (longest.count() <= 0) return;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(longest);
  const timespec limit{.tv_sec = static_cast<std::time_t>(seconds.count()),
                       .tv_nsec = static_cast<long>((longest - seconds).count())};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, expected, &limit, nullptr, 0);
}

void StdAtomics::wake(Atomic<std::uint32_t>& word) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace lockstep::detail
