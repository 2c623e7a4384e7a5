#include "comm/hierarchical/hierarchical.h"

#include "tests/comm/mpi/mpi_job.h"
#include "tests/variable.h"

// The ranks of these tests are on one machine, and say that they are on several. Letters stand for
// hosts, one for each rank.

namespace lockstep::testing {
namespace {

using Hierarchical = Mpi;
class HierarchicalConformance : public Mpi, public ::testing::WithParamInterface<const char*> {};

TEST_P(HierarchicalConformance, Holds) {
  const std::string hosts = GetParam();
  Launched::Variables variables;
  if (hosts == "aba") variables["LOCKSTEP_TEST_FLUSHED"] = "1";
  if (hosts == "abba") variables["LOCKSTEP_PROGRESS"] = "wait";
  expect_well(command(static_cast<int>(hosts.size()), "conformance", "auto", hosts), {}, variables);
}

INSTANTIATE_TEST_SUITE_P(Hosts, HierarchicalConformance,
                         ::testing::Values("aabb", "aba", "abba", "abcacba", "abbbc"),
                         [](const auto& test) { return test.param; });

INSTANTIATE_TEST_SUITE_P(
    Hierarchical, ErrorOf,
    ::testing::Values(
        // Ranks whose all_reduce is complete on their host find it in their next operation.
        error_case("Mismatch", 4, "other-dtype", "abab",
                   {{4,
                     " differs between ranks: rank 3 got all_reduce sum float32 of 8 elements, "
                     "expected all_reduce sum float64 of 8 elements as on rank 1"},
                    {-1, "all_reduce #2 (hierarchical) rank 3 of 4: "},
                    {4, "{communication by rank 3 in "},
                    {-2, " in all_reduce #2, cause communication}"}}),
        error_case(
            "AnotherReductionForAnotherWrapper", 4, "other-reduction", "aabb",
            {{4,
              "rank 1 got all_reduce avg float32 of 8 elements for bucket 4 of the gradients "
              "of DistributedOptimizer #2, expected "}}),
        error_case("DeadlockOfRanksOfAHost", 4, "deadlock", "aabb",
                   {{4, "deadlock: rank 0 waits in all_reduce #"},
                    {4, "DistributedDataParallel #2) for rank 0; let one of these ranks"}}),
        // No stage of the two collectives is in the same group of ranks.
        error_case("UnlikeCollectives", 4, "other-collective", "aabb",
                   {{4, "deadlock: rank 0 waits in all_reduce #2 of the world for rank 1"}}),
        error_case("TimeoutOfARecv", 4, "other-tag", "aabb",
                   {{4, "waited 0.3 s for ranks 1, 2, 3, expected tag 8, got tag 3 from rank 1"}}),
        error_case(
            "Timeout", 4, "late", "abab",
            {{-1,
              "all_reduce #1 (hierarchical) rank 0 of 4: all_reduce #1 waited 0.2 s for rank "
              "2"},
             {4, "TimeoutError "},
             {1, "{timeout by rank 2 in all_reduce #1, cause timeout}"},
             {3, "{timeout by rank 2 in barrier #1, cause timeout}"}}),
        error_case("RankThatLeaves", 4, "leave", "abab",
                   {{3, "barrier #1 (hierarchical) rank "},
                    {3, ": rank 1 left the world before "},
                    {3, "{communication by rank 1 in barrier #1, cause communication}"}},
                   3),
        // Its first stage is a reduce_scatter.
        error_case("RankThatLeavesBeforeASum", 4, "leave-before-a-sum", "abab",
                   {{3, ": rank 1 left the world before all_reduce #1;"},
                    {3, "{communication by rank 1 in all_reduce #1, cause communication}"}},
                   3),
        error_case("MemberThatDoesNotCall", 3, "new-group-without-a-member", "aba",
                   {{3, "all_reduce #1 (the number of a new group) waited 6 s for rank 1"}}),
        error_case("AbandonedOperation", 4, "abandon", "aabb",
                   {{4, "all_reduce #2 was abandoned"}}),
        // It reaches ranks that communicate with their host only.
        error_case("FailureElsewhere", 4, "fail-elsewhere", "aabb", {{4, "this rank gives up"}}),
        error_case("FirstCause", 4, "give-up", "aabb",
                   {{4, "this rank gives up"},
                    {4, ": rank 1: this rank gives up"},
                    {1, ": the world failed earlier: rank 1: this rank gives up"},
                    {4, "{communication by rank 1 in "},
                    {4, ", cause general}"}})),
    [](const auto& test) { return test.param.name; });

/// Two pairs of leaders find it, each for itself.
TEST_F(Hierarchical, HostsThatDifferNameOneMismatch) {
  const auto text = said(4, "other-dtype-of-a-host", "aabb");
  EXPECT_EQ(count(text, "collective #2 differs between ranks: rank 2 got") +
                count(text, "collective #2 differs between ranks: rank 3 got"),
            4)
      << text;
  EXPECT_EQ(count(text, "rank 2 got") * count(text, "rank 3 got"), 0) << text;
}

TEST_F(Hierarchical, RanksThatFailAtTheSameTimeRaiseOneCause) {
  expect_one_cause(said(4, "all-give-up", "aabb"));
}

TEST_F(Hierarchical, ForkedChildrenLeaveTheWorldAlone) {
  expect_well(command(4, "fork-children", "", "aabb"), {{4, "all right\n"}}, variables());
}

/// Ranks wait in an order of their own, split the group and create groups of members.
TEST_F(Hierarchical, GroupsAreMadeWhileOperationsAreInFlight) {
  for (const auto* hosts : {"aabb", "abab", "abbb"})
    expect_well(command(4, "in-flight", "", hosts));
}

TEST_F(Hierarchical, InterfaceThatIsNotThereIsNamedOnEveryRank) {
  const Variable interface("LOCKSTEP_INTERFACE", "nosuch0");
  expect_counts(said(3, "refused", "aba"),
                {{3, "LOCKSTEP_INTERFACE: got 'nosuch0', expected one of: "}});
}

/// Tests that run the program on two hosts, network namespaces of their own, with two ranks each or
/// as many as the test says.
class TwoHosts : public Mpi {
 protected:
  void SetUp() override {
    Mpi::SetUp();
    if (!mpi::version().starts_with("Open MPI")) GTEST_SKIP() << "tools/two-hosts takes OpenMPI";
  }

  void expect_said(const std::string& text, const std::string& behaviour,
                   const std::string& per_host = "2") {
    auto environment = variables();
    environment["LOCKSTEP_HEARTBEAT"] = "30";
    environment["MASTER_ADDR"] = "10.77.0.1";  // the first host of tools/two-hosts
    environment["MASTER_PORT"] = "29500";
    const auto ended = Launched({LOCKSTEP_SOURCE_DIR "/tools/two-hosts", "--per-host", per_host,
                                 LOCKSTEP_MPI_RANK_PROGRAM, behaviour, folder_.path().string()},
                                environment)
                           .wait();
    if (ended.code == 77) GTEST_SKIP() << ended.err;
    EXPECT_EQ(ended.out, text) << ended.err;
    EXPECT_EQ(ended.code, 0) << ended.err;
  }
};

TEST_F(TwoHosts, HoldConformance) {
  expect_said("hierarchical\nhierarchical\nhierarchical\nhierarchical\n", "conformance-in-short");
}

// Of n elements each host sends the half that the other sums, and its sums: 2n bytes as halves.
TEST_F(TwoHosts, HalvesAreWhatTravels) { expect_said("halves\n", "halves-over-the-link"); }

// The request for a long message would queue behind the bytes of the other direction's message.
TEST_F(TwoHosts, PartsTravelBothWaysAtTheSameTime) {
  expect_said("both ways\n", "both-ways-over-the-link", "1");
}

}  // namespace
}  // namespace lockstep::testing
