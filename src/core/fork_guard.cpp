#include "core/fork_guard.h"

#include <pthread.h>

namespace lockstep::inline v0_2::detail {

std::atomic<unsigned> ForkGuard::forks_{0};

ForkGuard::ForkGuard() {
  [[maybe_unused]] static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { forks_.fetch_add(1, std::memory_order_relaxed); });
  made_at_ = forks_.load(std::memory_order_relaxed);
}

}  // namespace lockstep::detail
