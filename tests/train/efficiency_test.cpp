#include "lockstep/efficiency.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <thread>
#include <vector>

#include "core/system/topology.h"
#include "lockstep/error.h"
#include "tests/groups.h"
#include "tests/matchers.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

TEST(Efficiency, IsTheMedianOfTheRoundsWithItsSpread) {
  const std::vector<double> alone{0.009, 0.010, 0.009, 0.0095, 0.009};
  const std::vector<double> together{0.010, 0.010, 0.010, 0.010, 0.010};
  const auto found = efficiency_of(alone, together, 0.02);
  EXPECT_TRUE(found.reliable()) << found.doubt;
  EXPECT_DOUBLE_EQ(found.median, 0.9);
  EXPECT_DOUBLE_EQ(found.least, 0.9);
  EXPECT_DOUBLE_EQ(found.most, 1.0);
  EXPECT_DOUBLE_EQ(found.alone, 0.009);
  EXPECT_DOUBLE_EQ(found.together, 0.010);
  EXPECT_EQ(found.rounds, 5);
  EXPECT_EQ(to_text(found, 2),
            "efficiency 90.0 % (90.0 to 100.0 over 5 rounds): a step takes 9.0 ms on one rank, "
            "10.0 ms on 2");
  EXPECT_DOUBLE_EQ(efficiency_of(std::vector{1.0, 3.0}, std::vector{4.0, 4.0}).median, 0.5);
}

TEST(Efficiency, IsNotShownWhereItIsNotReliable) {
  const std::vector<double> one{1, 1, 1};
  const struct {
    std::vector<double> alone;
    double other_load;
    const char* doubt;
  } cases[] = {
      {one, 0.23, "other programs used 23 % of the processors"},
      {{0.539, 0.9, 1.115}, 0, "the rounds differ too much, from 53.9 to 111.5 %"},
      {{1.1, 1.115, 1.12}, 0, "one rank alone took longer"},
      {{1, std::numeric_limits<double>::infinity(), 1}, 0, "the rounds differ too much"},
  };
  for (const auto& one_case : cases) {
    const auto found = efficiency_of(one_case.alone, one, one_case.other_load);
    EXPECT_FALSE(found.reliable());
    EXPECT_THAT(found.doubt, HasSubstr(one_case.doubt));
    const auto text = to_text(found, 2);
    EXPECT_THAT(text, HasSubstr("efficiency not measured reliably: " + found.doubt));
    EXPECT_THAT(text, Not(HasSubstr("a step takes")));
  }
  EXPECT_TRUE(efficiency_of(one, one, 0.1).reliable());
}

TEST(Efficiency, NeedsRounds) {
  const std::vector<double> one{1};
  EXPECT_THROW(efficiency_of({}, {}), InvalidArgument);
  EXPECT_THROW(efficiency_of(one, {}), InvalidArgument);
  run_groups(2, [&](const Group& world) {
    const auto nothing = [] {};
    EXPECT_THROW(measure_efficiency(world, nothing, nothing, {.rounds = 0}), InvalidArgument);
    EXPECT_THROW(measure_efficiency(world, nothing, nothing, {.time = -1ms}), InvalidArgument);
  });
}

TEST(Efficiency, RankZeroStepsAloneAndAllRanksTogether) {
  constexpr int ranks = 3;
  std::atomic<int> alone_by_others{0};
  run_groups(ranks, [&](const Group& world) {
    int steps = 0;
    const auto found = measure_efficiency(
        world,
        [&] {
          if (world.rank() != 0) ++alone_by_others;
          std::this_thread::sleep_for(2ms);
        },
        [&] {
          ++steps;
          world.barrier().wait();
          std::this_thread::sleep_for(4ms);
        },
        {.rounds = 3, .time = 20ms});
    EXPECT_EQ(found.rounds, 3);
    EXPECT_GT(steps, 3);
    EXPECT_GT(found.alone, 0.0019);
    EXPECT_GT(found.together, 0.0039);
    // Every rank has the same.
    const auto mine = at::empty({1}, at::kDouble);
    *mine.mutable_data_ptr<double>() = found.median;
    world.broadcast(mine).wait();
    EXPECT_EQ(*mine.const_data_ptr<double>(), found.median);
    *mine.mutable_data_ptr<double>() = static_cast<double>(found.doubt.size());
    world.broadcast(mine).wait();
    EXPECT_EQ(*mine.const_data_ptr<double>(), static_cast<double>(found.doubt.size()));
  });
  EXPECT_EQ(alone_by_others, 0);
}

TEST(Efficiency, OtherLoadOfTheProcessorsIsNoticed) {
  if (!detail::ProcessorTime::read(Topology::read().cpus()).busy) {
    GTEST_SKIP() << "this kernel counts no processor time";
  }
  // Threads of a rank's process count as its own, so the load is another process's.
  std::vector<pid_t> others;
  for (unsigned i = 0; i < std::thread::hardware_concurrency(); ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (;;) ::getppid();
    }
    others.push_back(pid);
  }
  Efficiency found;
  run_groups(1, [&](const Group& group) {
    const auto step = [] { std::this_thread::sleep_for(5ms); };
    found = measure_efficiency(group, step, step, {.rounds = 3, .time = 100ms});
  });
  for (const pid_t pid : others) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  EXPECT_FALSE(found.reliable());
  EXPECT_THAT(found.doubt, HasSubstr("other programs used"));
}

}  // namespace
}  // namespace lockstep::testing
