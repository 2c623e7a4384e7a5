#include "comm/host/wake_flag.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <ctime>

namespace lockstep::inline v0_2::host {

void wake(RankState& state) noexcept {
  if (state.asleep.load(std::memory_order_relaxed) == 0) return;
  state.wake_flag.fetch_add(1);
  ::syscall(SYS_futex, &state.wake_flag, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void wake_all(const Arena& arena) noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int rank = 0; rank < arena.size(); ++rank) wake(arena.rank(rank));
}

FutexSleep::FutexSleep(const Arena& arena, int rank)
    : header_(arena.header()), state_(arena.rank(rank)), wake_flag_(state_.wake_flag.load()) {
  state_.asleep.store(1);
  header_.sleepers.fetch_add(1);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

FutexSleep::~FutexSleep() {
  header_.sleepers.fetch_sub(1);
  state_.asleep.store(0);
}

void FutexSleep::sleep(std::chrono::nanoseconds longest) const {
  if (longest.count() <= 0) return;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(longest);
  const timespec limit{.tv_sec = static_cast<std::time_t>(seconds.count()),
                       .tv_nsec = static_cast<long>((longest - seconds).count())};
  ::syscall(SYS_futex, &state_.wake_flag, FUTEX_WAIT, wake_flag_, &limit, nullptr, 0);
}

}  // namespace lockstep::host
