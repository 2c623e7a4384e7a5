#include "comm/progress_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <thread>

namespace lockstep::testing {
namespace {

/// Work in steps, which whoever holds the mutex may do.
struct Steps {
  std::mutex mutex;
  int left = 0;  ///< guarded by the mutex
  int done = 0;  ///< likewise

  detail::ProgressThread::Outcome advance() {
    if (left == 0) return {.progressed = false, .pending = false};
    --left;
    ++done;
    return {.progressed = true, .pending = left > 0};
  }
  void begin(detail::ProgressThread& thread, int steps) {
    const std::lock_guard lock(mutex);
    left += steps;
    thread.wake();
  }
  int await(int count) {
    for (;;) {
      {
        const std::lock_guard lock(mutex);
        if (done >= count) return done;
      }
      std::this_thread::yield();
    }
  }
};

TEST(ProgressThread, AdvancesWhatIsBegunAgainAndAgain) {
  Steps steps;
  detail::ProgressThread thread(steps.mutex, [&] { return steps.advance(); });
  for (int i = 1; i <= 50; ++i) {
    steps.begin(thread, 3);
    EXPECT_EQ(steps.await(3 * i), 3 * i);
  }
}

TEST(ProgressThread, LetsWhoHoldsTheMutexAdvance) {
  Steps steps;
  detail::ProgressThread thread(steps.mutex, [&] { return steps.advance(); });
  for (int i = 1; i <= 1000; ++i) {
    const std::lock_guard lock(steps.mutex);
    steps.left += 5;
    thread.wake();
    const int done = steps.done;
    while (steps.left > 0) steps.advance();
    ASSERT_EQ(steps.done, done + 5) << "and nobody else did while the mutex was held";
  }
}

TEST(ProgressThread, AdvancesNothingOnceItIsStopped) {
  Steps steps;
  detail::ProgressThread thread(steps.mutex, [&] { return steps.advance(); });
  steps.begin(thread, 1'000'000'000);
  steps.await(1);
  thread.stop();
  // From here on without the mutex: the sanitizer would tell.
  EXPECT_EQ(steps.left + steps.done, 1'000'000'000);
  thread.stop();
}

TEST(ProgressThread, StopsWhileSomebodyElseHoldsTheMutex) {
  Steps steps;
  detail::ProgressThread thread(steps.mutex, [&] { return steps.advance(); });
  const std::lock_guard lock(steps.mutex);
  steps.left = 5;
  thread.wake();
  thread.stop();
  EXPECT_EQ(steps.left, 5);
}

/// Threads of this process, as the kernel counts them.
std::ptrdiff_t thread_count() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

TEST(ProgressThread, EndsUnused) {
  Steps steps;
  const auto before = thread_count();
  std::atomic<int> calls = 0;
  {
    const detail::ProgressThread thread(steps.mutex, [&] {
      ++calls;
      return steps.advance();
    });
    EXPECT_EQ(thread_count(), before + 1);
  }
  EXPECT_EQ(calls, 0) << "nothing was begun";
  // The kernel lists a thread for a moment after it was joined.
  while (thread_count() > before) std::this_thread::yield();
  EXPECT_EQ(thread_count(), before);
}

}  // namespace
}  // namespace lockstep::testing
