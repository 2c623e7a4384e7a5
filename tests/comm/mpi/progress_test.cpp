#include <string>
#include <string_view>

#include "tests/comm/mpi/mpi_job.h"
#include "tests/matchers.h"

// Tests of the thread that makes progress on operations over MPI.

namespace lockstep::testing {
namespace {

/// Tests of programs that select the progress mode.
class MpiProgress : public Mpi {
 protected:
  static Ended run(int n, const std::string& progress, const std::string& behaviour,
                   const std::string& argument = {}) {
    return Launched(command(n, behaviour, argument), {{"LOCKSTEP_PROGRESS", progress}}).wait();
  }

  const Launched::Variables by_thread{{"LOCKSTEP_PROGRESS", "thread"}};
  const Launched::Variables in_wait{{"LOCKSTEP_PROGRESS", "wait"}};
};

TEST_F(MpiProgress, OperationsCompleteWhileRanksCompute) {
  for (const int n : {2, 4}) expect_well(command(n, "overlap"), {}, by_thread);
}

TEST_F(MpiProgress, StagesOfAHierarchyFollowOneAnotherWhileRanksCompute) {
  for (const auto* hosts : {"aabb", "aab", "abc"}) {
    const auto ranks = static_cast<int>(std::string_view(hosts).size());
    expect_well(command(ranks, "overlap", "", hosts), {}, by_thread);
  }
}

TEST_F(MpiProgress, NothingIsHiddenWhereRanksThatWaitMakeIt) {
  for (const auto* hosts : {"", "aabb"}) {
    expect_well(command(4, "no-overlap", "", hosts), {{4, "hidden 0\n"}}, in_wait);
  }
}

TEST_F(MpiProgress, HierarchyHoldsConformanceInWaitToo) {
  expect_well(command(4, "conformance", "auto", "abba"), {}, in_wait);
}

TEST_F(MpiProgress, ThreadIsThereWhereTheProgramsMpiServesAnyNumber) {
  if (network() != "mpi") GTEST_SKIP() << "over " << network();
  expect_well(command(2, "own-level", "multiple"), {{2, "by a thread\n"}, {2, "ended\n"}},
              {{"LOCKSTEP_PROGRESS", "auto"}});
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
