#include <string>

#include "tests/comm/mpi/mpi_job.h"
#include "tests/matchers.h"

// Tests of the thread that makes progress on operations over MPI.

namespace lockstep::testing {
namespace {

/// Tests of programs that select the progress mode.
class MpiProgress : public Mpi {
 protected:
  static Ended run(int n, const std::string& progress, const std::string& behaviour,
                   const std::string& argument = {}, const std::string& hosts = {}) {
    return Launched(command(n, behaviour, argument, hosts), {{"LOCKSTEP_PROGRESS", progress}})
        .wait();
  }
};

TEST_F(MpiProgress, OperationsCompleteWhileRanksCompute) {
  for (const int n : {2, 4}) {
    const auto ended = run(n, "thread", "overlap");
    EXPECT_EQ(ended.code, 0) << ended.out << ended.err;
  }
}

TEST_F(MpiProgress, StagesOfAHierarchyFollowOneAnotherWhileRanksCompute) {
  for (const auto* hosts : {"aabb", "aab", "abc"}) {
    const std::string each = hosts;
    const auto ended = run(static_cast<int>(each.size()), "thread", "overlap", "", each);
    EXPECT_EQ(ended.code, 0) << ended.out << ended.err;
  }
}

TEST_F(MpiProgress, NothingIsHiddenWhereRanksThatWaitMakeIt) {
  for (const auto* hosts : {"", "aabb"}) {
    const auto ended = run(4, "wait", "no-overlap", "", hosts);
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_EQ(count(ended.out, "hidden 0\n"), 4) << ended.out;
  }
}

TEST_F(MpiProgress, HierarchyHoldsConformanceInWaitToo) {
  const auto ended = run(4, "wait", "conformance", "auto", "abba");
  EXPECT_EQ(ended.code, 0) << ended.out << ended.err;
}

TEST_F(MpiProgress, ThreadIsThereWhereTheProgramsMpiServesAnyNumber) {
  if (network() != "mpi") GTEST_SKIP() << "over " << network();
  const auto ended = run(2, "auto", "own-level", "multiple");
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(count(ended.out, "by a thread\n"), 2) << ended.out;
  EXPECT_EQ(count(ended.out, "ended\n"), 2) << ended.out;
}

TEST_F(MpiProgress, ProgramsMpiForOneThreadAtATimeIsLeftToWhoWaits) {
  if (network() != "mpi") GTEST_SKIP() << "over " << network();
  const auto ended = run(2, "auto", "own-level", "serialized");
  EXPECT_EQ(count(ended.out, "by who waits\n"), 2) << ended.out << ended.err;
  EXPECT_EQ(count(ended.out, "ended\n"), 2) << ended.out;
}

TEST_F(MpiProgress, ThreadThatMpiDoesNotAllowIsAnError) {
  if (network() != "mpi") GTEST_SKIP() << "over " << network();
  const auto ended = run(2, "thread", "own-level", "serialized");
  EXPECT_EQ(count(ended.out,
                  "got progress thread, but the program initialised MPI with "
                  "MPI_THREAD_SERIALIZED, and a thread needs MPI_THREAD_MULTIPLE"),
            2)
      << ended.out << ended.err;
}

TEST_F(MpiProgress, UnknownNameIsAnError) {
  const auto ended = run(1, "threads", "overlap");
  EXPECT_NE(ended.code, 0);
  EXPECT_THAT(ended.err, HasSubstr("got 'threads', expected auto, thread or wait"));
}

}  // namespace
}  // namespace lockstep::testing
