#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/system/denormals_guard.h"
#include "core/system/topology.h"
#include "core/text.h"
#include "lockstep/denormals.h"
#include "tests/launch/launched.h"

namespace lockstep::testing {
namespace {

using lockstep::detail::concat;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(RanksEnvironment, IsWhatTheTablesSay) {
  const auto script =
      concat("echo $LOCKSTEP_RANK $LOCKSTEP_WORLD_SIZE $OMP_NUM_THREADS $MALLOC_MMAP_MAX_ $MINE; ",
             "[ -e /proc/self/fd/$LOCKSTEP_ARENA_FD ] || echo no world");
  const auto ended =
      run_lockstep({"-n", "1", "sh", "-c", script}, {{"OMP_NUM_THREADS", "3"}, {"MINE", "kept"}});
  EXPECT_EQ(ended.out, "0 1 3 0 kept\n");
}

TEST(RanksEnvironment, SaysWhetherDenormalsAreFlushed) {
  const auto told = [](std::vector<std::string> options) {
    options.insert(options.end(), {"-n", "1", "sh", "-c", "echo $LOCKSTEP_FLUSH_DENORMALS"});
    return run_lockstep(options).out;
  };
  EXPECT_EQ(told({"--denormals", "keep"}), "0\n");
  EXPECT_EQ(told({"--denormals", "flush"}), "1\n");
  EXPECT_EQ(told({}), lockstep::detail::can_flush_denormals ? "1\n" : "0\n");
  const auto wrong = run_lockstep({"--denormals", "drop", "-n", "1", "true"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("--denormals"));
}

TEST(RanksEnvironment, BindsToTheCpusOfThePlan) {
  const auto cpus = Topology::read().cpus();
  const auto allowed = [](const std::string& bind) {
    return run_lockstep(
               {"-n", "2", "--bind", bind, "sh", "-c",
                "[ $LOCKSTEP_RANK = 0 ] || exit 0; grep Cpus_allowed_list /proc/self/status"})
        .out;
  };
  EXPECT_EQ(allowed("none"), concat("Cpus_allowed_list:\t", format_cpu_list(cpus), '\n'));
  if (Topology::read().cores.size() < 2) GTEST_SKIP() << "one core: nothing to divide";
  EXPECT_NE(allowed("cores"), allowed("none"));
}

TEST(DryRun, ShowsThePlanAndStartsNothing) {
  const auto ended = run_lockstep({"-n", "2", "--dry-run", "sh", "-c", "echo started"});
  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(ended.out, HasSubstr("Configuration\n"));
  EXPECT_THAT(ended.out, HasSubstr("Environment of each rank\n"));
  EXPECT_THAT(ended.out, Not(HasSubstr("\nstarted")));
  EXPECT_EQ(ended.err, "");
}

TEST(Verbose, ShowsThePlanBesideTheOutput) {
  const auto ended = run_lockstep({"-v", "-n", "1", "echo", "started"});
  EXPECT_EQ(ended.out, "started\n");
  EXPECT_THAT(ended.err, HasSubstr("Environment of every rank\n"));
}

TEST(Doctor, TellsWhatABugReportNeeds) {
  const auto ended = Launched({lockstep_program(), "doctor"}).wait();
  EXPECT_EQ(ended.code, 0);
  for (const char* word :
       {"lockstep", "compiler", "kernel", "glibc", "LibTorch", "backend host", "backend mpi",
        "CPU targets", "cores", "NUMA node", "memory", "huge pages", "memfd", "open files"}) {
    EXPECT_THAT(ended.out, HasSubstr(word));
  }
}

TEST(Help, NamesEveryCommand) {
  const auto ended = Launched({lockstep_program(), "--help"}).wait();
  EXPECT_EQ(ended.code, 0);
  for (const char* word : {"run", "bench", "doctor"}) EXPECT_THAT(ended.out, HasSubstr(word));
}

}  // namespace
}  // namespace lockstep::testing
