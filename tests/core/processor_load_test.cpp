#include <gtest/gtest.h>
#include <sched.h>

#include <array>
#include <chrono>
#include <sstream>
#include <vector>

#include "core/system/topology.h"

namespace lockstep::detail {
namespace {

using namespace std::chrono_literals;

TEST(ProcessorLoad, IsAllTimeButIdleOfTheChosenCpus) {
  const char* const content =
      "cpu  300 30 60 4000 500 6 9 12 0 0\n"
      "cpu0 100 10 20 1000 100 1 2 3 50 5\n"
      "cpu1 200 20 40 2000 200 5 7 9\n"
      "cpu10 1 1 1 1 1 1 1 1\n"
      "intr 1 2 3\n";
  const auto of = [&](const std::vector<int>& cpus) {
    std::istringstream stat(content);
    return busy_ticks(stat, cpus);
  };
  EXPECT_EQ(of({0}), 100 + 10 + 20 + 1 + 2 + 3) << "a guest's time is a part of user's";
  EXPECT_EQ(of({0, 1}), 136 + 281);
  EXPECT_EQ(of({10}), 6);
  EXPECT_EQ(of({2}), std::nullopt);
  EXPECT_EQ(of({0, 2}), std::nullopt);
  EXPECT_EQ(of({}), std::nullopt);
}

TEST(ProcessorLoad, GrowsByWhatThisProcessDoes) {
  const auto cpus = Topology::read().cpus();
  const auto before = ProcessorTime::read(cpus);
  const auto end = std::chrono::steady_clock::now() + 100ms;
  while (std::chrono::steady_clock::now() < end) {
  }
  const auto after = ProcessorTime::read(cpus);
  EXPECT_GT(after.own, before.own);
  if (!before.busy || *after.busy == 0) GTEST_SKIP() << "this kernel counts no processor time";
  EXPECT_GT(*after.busy, *before.busy);
}

}  // namespace
}  // namespace lockstep::detail
