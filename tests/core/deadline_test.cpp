#include "core/deadline.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep::inline v0_2::detail {
namespace {

using namespace std::chrono_literals;

TEST(Deadline, PassesWhenItsTimeHasCountedAndSleepsNoLonger) {
  Deadline deadline(20ms);
  EXPECT_GT(deadline.left(), 0ms);
  while (!deadline.passed()) ::usleep(1000);
  EXPECT_EQ(deadline.left(), Deadline::Clock::duration::zero());
  EXPECT_GE(deadline.elapsed(), 20ms);
  EXPECT_LE(Deadline(5ms).nap(), 5ms);
  EXPECT_EQ(Deadline(1h).nap(), Deadline::longest_nap);
  EXPECT_FALSE(Deadline(std::chrono::milliseconds::max()).passed());
}

TEST(Deadline, DoesNotCountTimeInWhichTheProcessIsStopped) {
  const pid_t child = ::fork();
  if (child == 0) {
    Deadline deadline(1s);
    ::raise(SIGSTOP);
    ::_exit(deadline.passed() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  ::usleep(1'200'000);  // longer than its deadline
  ::kill(child, SIGCONT);
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace lockstep::detail
