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

/// A thread with work in steps, which whoever holds the mutex may do.
class ProgressThread : public ::testing::Test {
 protected:
  detail::ProgressThread::Outcome advance() {
    if (left_ == 0) return {.progressed = false, .pending = false};
    --left_;
    ++done_;
    return {.progressed = true, .pending = left_ > 0};
  }
  void begin(int steps) {
    left_ += steps;
    thread_.wake();
  }
  int await(int count) {
    for (;; std::this_thread::yield()) {
      const std::lock_guard lock(mutex_);
      if (done_ >= count) return done_;
    }
  }

  std::mutex mutex_;
  int left_ = 0;  ///< guarded by the mutex
  int done_ = 0;  ///< likewise
  detail::ProgressThread thread_{mutex_, [this] { return advance(); }};
};

TEST_F(ProgressThread, AdvancesWhatIsBegunAgainAndAgain) {
  for (int i = 1; i <= 50; ++i) {
    mutex_.lock();
    begin(3);
    mutex_.unlock();
    EXPECT_EQ(await(3 * i), 3 * i);
  }
}

TEST_F(ProgressThread, LetsWhoHoldsTheMutexAdvance) {
  for (int i = 1; i <= 1000; ++i) {
    const std::lock_guard lock(mutex_);
    begin(5);
    const int done = done_;
    while (left_ > 0) advance();
    ASSERT_EQ(done_, done + 5) << "and nobody else did while the mutex was held";
  }
}

TEST_F(ProgressThread, AdvancesNothingOnceItIsStopped) {
  mutex_.lock();
  begin(1'000'000'000);
  mutex_.unlock();
  await(1);
  thread_.stop();
  // From here on without the mutex: the sanitizer would tell.
  EXPECT_EQ(left_ + done_, 1'000'000'000);
  thread_.stop();
}

TEST_F(ProgressThread, StopsWhileSomebodyElseHoldsTheMutex) {
  const std::lock_guard lock(mutex_);
  begin(5);
  thread_.stop();
  EXPECT_EQ(left_, 5);
}

/// Threads of this process, as the kernel counts them.
std::ptrdiff_t thread_count() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

TEST(ProgressThreads, EndUnused) {
  std::mutex mutex;
  const auto before = thread_count();
  std::atomic<int> calls = 0;
  {
    const detail::ProgressThread thread(mutex, [&] {
      ++calls;
      return detail::ProgressThread::Outcome{.progressed = false, .pending = false};
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
