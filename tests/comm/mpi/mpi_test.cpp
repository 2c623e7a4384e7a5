#include "comm/mpi/mpi.h"

#include <cstdint>

#include "comm/messages/options.h"
#include "core/system/files.h"
#include "tests/comm/mpi/mpi_job.h"
#include "tests/message_of.h"

namespace lockstep::testing {
namespace {

struct MpiCase {
  int ranks;
  const char* algorithm;
  const char* progress = "thread";
  bool flushed = false;
};

class MpiConformance : public Mpi, public ::testing::WithParamInterface<MpiCase> {};

TEST_P(MpiConformance, Holds) {
  const auto& [n, algorithm, progress, flushed] = GetParam();
  Launched::Variables variables{{"LOCKSTEP_PROGRESS", progress}};
  if (flushed) variables["LOCKSTEP_TEST_FLUSHED"] = "1";
  expect_well(command(n, "conformance", algorithm), {}, variables);
}

INSTANTIATE_TEST_SUITE_P(Ranks, MpiConformance,
                         ::testing::Values(MpiCase{1, "auto"}, MpiCase{2, "auto"},
                                           MpiCase{3, "auto"}, MpiCase{4, "auto"},
                                           MpiCase{7, "auto"}, MpiCase{3, "ring", "wait"},
                                           MpiCase{3, "auto", "wait", true},
                                           MpiCase{3, "ring", "thread", true}),
                         [](const auto& test) {
                           const bool wait = test.param.progress == std::string("wait");
                           return test.param.algorithm + std::to_string(test.param.ranks) +
                                  (wait ? "InWait" : "") + (test.param.flushed ? "Flushed" : "");
                         });

TEST_F(Mpi, RingGivesEveryRankTheSameSums) { expect_well(command(7, "ring-in-short", "ring")); }

TEST_F(Mpi, RingIsTakenWhereNeighboursShareHosts) {
  expect_well(command(4, "ring-in-short", "auto", "aabb"));
}

TEST_F(Mpi, OtherAlgorithmIsNamedOnEveryRank) {
  expect_counts(
      Launched(command(3, "other-algorithm")).wait().out,
      {{3, "the algorithm differs between ranks: rank 1 got direct, expected ring as on rank 0"}});
}

TEST_P(ErrorOf, IsWhatTheRanksSay) {
  const auto& c = GetParam();
  expect_counts(said(c.ranks, c.behaviour, c.hosts, c.speakers), c.counts);
}

INSTANTIATE_TEST_SUITE_P(
    Mpi, ErrorOf,
    ::testing::Values(
        error_case("Mismatch", 3, "other-dtype", "",
                   {{3,
                     "collective #2 differs between ranks: rank 1 got all_reduce sum float64 of 8 "
                     "elements, expected all_reduce sum float32 of 8 elements as on rank 0"},
                    {-1, "all_reduce #2 (" + network() + ") rank 2 of 3: "},
                    {3, "{communication by rank 1 in all_reduce #2, cause communication}"}}),
        error_case("FirstOfTwoMismatches", 2, "other-dtypes", "",
                   {{2, "collective #2 differs between ranks: rank 1 got"}}),
        error_case("DeadlockOfTwoGroups", 3, "deadlock", "",
                   {{3,
                     "deadlock: rank 0 waits in all_reduce #3 of the world (bucket 0 of the "
                     "gradients of DistributedDataParallel #1) for rank 1, rank 1 waits in "
                     "all_reduce #1 of group 2 of ranks 0, 1, 2 (bucket 0 of the gradients of "
                     "DistributedDataParallel #2) for rank 0; let one of these ranks begin what "
                     "another one waits for before it waits itself, and issue the operations of "
                     "groups that share ranks in the same order on all of them"}}),
        error_case(
            "MessageMismatch", 2, "other-message", "",
            {{2,
              "message #1 from rank 0 to rank 1 differs: the receiver expected 4 elements of "
              "float64 with tag 7, got 4 elements of float32 with tag 7"},
             {2, "{communication by rank 1 in "}}),
        error_case("Timeout", 3, "late", "",
                   {{-1, "all_reduce #1 (" + network() +
                             ") rank 0 of 3: all_reduce #1 waited 0.2 s for ranks 1, 2"},
                    {1, "{timeout by rank 1 in all_reduce #1, cause timeout}"},
                    {2, "{timeout by rank 1 in barrier #1, cause timeout}"}}),
        error_case("RankThatLeaves", 3, "leave", "",
                   {{2, "rank 1 left the world before barrier #1"},
                    {2, "{communication by rank 1 in barrier #1, cause communication}"}},
                   2),
        error_case("RecvFromAnyRankWhenAllOthersHaveLeft", 3, "sources-leave", "",
                   {{1, "received from 2"}, {1, " left the world before recv #2 from any rank"}},
                   1),
        error_case("RecvFromAnyRankWhenOneHasLeftByAnException", 3, "sources-throw", "",
                   {{1, "rank 1 left the world (by an exception) before recv #2 from any rank"}},
                   1),
        error_case("FirstCause", 3, "give-up", "",
                   {{3, ": rank 1: this rank gives up"},
                    {1, ": the world failed earlier: rank 1: "},
                    {3, "{communication by rank 1 in "},
                    {3, ", cause general}"}})),
    [](const auto& test) { return test.param.name; });

TEST_F(Mpi, RanksThatFailAtTheSameTimeRaiseOneCause) { expect_one_cause(said(4, "all-give-up")); }

TEST_F(OfMpi, JoinsWhatTheProgramBeganAndSaysSoWhereItHasEnded) {
  expect_well(command(3, "own-mpi"), {{3, " is used outside the main thread; the program "},
                                      {3, "product 6\n"},
                                      {3, "ended\n"},
                                      {-3, " is used after the program's MPI_Finalize; call "},
                                      {0, " is used by two threads at once"}});
}

TEST_F(Mpi, ForkedChildrenLeaveTheWorldAlone) {
  expect_well(command(3, "fork-children"), {{3, "all right\n"}}, variables());
}

TEST_F(OfMpi, ProcessThatNeverJoinsIsWaitedForUntilTheTimeout) {
  auto with = variables();
  with["LOCKSTEP_STALL_WARNING"] = "0.5";
  const auto ended = Launched(command(2, "late-to-join"), with).wait();
  EXPECT_NE(ended.code, 0);
  const auto* others = " s for other processes of this job";
  EXPECT_THAT(ended.err, AllOf(HasSubstr(concat("init: MPI_Init has waited 0.5", others)),
                               HasSubstr(concat("init: MPI_Init waited 1", others))));
}

TEST_F(Mpi, MoreElementsThanAnIntCounts) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "too many elements for a sanitizer";
#endif
  const auto memory = detail::fields("/proc/meminfo");
  const auto gib = std::stod(memory.at("MemAvailable")) / (1 << 20);
  if (gib < 12) GTEST_SKIP() << gib << " GiB of 12";
  expect_well(command(2, "many-elements"), {{2, "all right\n"}});
}

TEST_F(OfMpi, RefusesAnMpiForOneThread) {
  expect_counts(Launched(command(2, "one-thread-only")).wait().out,
                {{2, "the program initialised MPI with MPI_THREAD_SINGLE"}});
}

TEST_F(OfMpi, LauncherOfAnotherMpiIsAnError) {
  const auto ended = Launched(command(1, "one-of-four")).wait();
  EXPECT_THAT(ended.out, AllOf(HasSubstr("the launcher started 4 ranks"), HasSubstr("knows of 1")));
}

TEST_F(OfMpi, BrokenLibraryEndsEveryRankWithItsWords) {
  if (!mpi::version().starts_with("Open MPI")) GTEST_SKIP() << "MPICH has no parts to lose";
  const auto ended =
      Launched({LOCKSTEP_MPI_RANK_PROGRAM, "one-of-four"}, {{"OMPI_MCA_pml", "nosuch"}}).wait();
  EXPECT_NE(ended.code, 0);
  // Sometimes Open MPI fails to show a part of its help.
  EXPECT_THAT(ended.out + ended.err, AnyOf(HasSubstr("MPI_Init"), HasSubstr("MPI_INIT"),
                                           HasSubstr("nosuch"), HasSubstr("show_help")));
}

// Progress by a thread, or by ranks that wait.

using MpiProgress = Mpi;
const Launched::Variables by_thread{{"LOCKSTEP_PROGRESS", "thread"}};

TEST_F(MpiProgress, OperationsCompleteWhileRanksCompute) {
  for (const auto* hosts : {"", "aabb"})
    expect_well(command(4, "overlap", "", hosts), {}, by_thread);
  expect_well(command(3, "overlap", "", "aab"), {}, by_thread);
}

TEST_F(MpiProgress, NothingIsHiddenWhereRanksThatWaitMakeIt) {
  for (const auto* hosts : {"", "aabb"}) {
    expect_well(command(4, "no-overlap", "", hosts), {{4, "hidden 0\n"}},
                {{"LOCKSTEP_PROGRESS", "wait"}});
  }
}

TEST_F(OfMpi, ProgressIsMadeByAThreadWhereTheProgramsMpiServesAnyNumber) {
  const Launched::Variables automatic{{"LOCKSTEP_PROGRESS", "auto"}};
  expect_well(command(2, "own-level", "multiple"), {{2, "by a thread\n"}, {2, "ended\n"}},
              automatic);
  const auto serialized = command(2, "own-level", "serialized");
  expect_counts(Launched(serialized, automatic).wait().out,
                {{2, "by who waits\n"}, {2, "ended\n"}});
  expect_counts(Launched(serialized, by_thread).wait().out,
                {{2,
                  "got progress thread, but the program initialised MPI with "
                  "MPI_THREAD_SERIALIZED, and a thread needs MPI_THREAD_MULTIPLE"}});
}

TEST(NoMpi, SaysWhy) {
  if (mpi::available().empty()) GTEST_SKIP() << "this build has MPI: " << mpi::version();
  EXPECT_THAT(mpi::available(), HasSubstr("LOCKSTEP_WITH_MPI"));
  EXPECT_EQ(mpi::version(), "");
  EXPECT_THROW(mpi::create({}), BackendUnavailable);
}

TEST(MpiJoinRecord, NamesTheFirstRankThatDiffers) {
  std::vector<messages::JoinRecord> cards(
      3, messages::join_record_of("here", messages::Algorithm::ring));
  messages::expect_alike("mpi", cards);
  cards[2] = messages::join_record_of("there", messages::Algorithm::ring);
  messages::expect_alike("mpi", cards);
  cards[2].algorithm = static_cast<std::int64_t>(messages::Algorithm::direct);
  EXPECT_THROW(messages::expect_alike("mpi", cards), InvalidArgument);
  cards[1].flushes_denormals = !cards[0].flushes_denormals;
  EXPECT_THROW(messages::expect_alike("mpi", cards), InvalidArgument);
  cards[1].version = {"0.0.9"};
  EXPECT_THAT(message_of<CommError>([&] { messages::expect_alike("mpi", cards); }),
              HasSubstr("rank 1 runs Lockstep 0.0.9, expected "));
}

TEST(MpiAlgorithm, IsParsedAndNamed) {
  for (const char* text : {"auto", "direct", "ring"}) {
    EXPECT_EQ(messages::name(messages::parse_algorithm(text)), text);
  }
  EXPECT_THROW(messages::parse_algorithm("tree"), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::testing
