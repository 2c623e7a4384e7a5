#include "comm/progress_thread.h"

#include <gtest/gtest.h>

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
    if (left == 0) return {.news = false, .under_way = false};
    --left;
    ++done;
    return {.news = true, .under_way = left > 0};
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

TEST(ProgressThread, EndsUnused) {
  Steps steps;
  const detail::ProgressThread thread(steps.mutex, [&] { return steps.advance(); });
}

}  // namespace
}  // namespace lockstep::testing
