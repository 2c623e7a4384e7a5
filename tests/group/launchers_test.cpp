#include "tests/group/launchers.h"

#include <algorithm>
#include <thread>

#include "comm/control/address.h"
#include "comm/ucx/ucx.h"
#include "core/system/topology.h"
#include "tests/launch/job_on_nodes.h"

namespace lockstep::testing {
namespace {

using Variables = Launched::Variables;

/// Every rank's variables; RANK and the like stand for the rank itself.
using VariablesOfRank = std::function<Variables(const std::string& rank)>;

/// Starts n ranks one by one, the last rank first, and returns their output.
std::string started_by_hand(int n, const VariablesOfRank& variables) {
  std::deque<Launched> ranks;
  for (int rank = n; rank-- > 0;) {
    ranks.emplace_back(Words{init_program}, variables(std::to_string(rank)));
  }
  std::string said;
  for (auto& rank : ranks) said += rank.wait().out;
  return said;
}

/// A port of this test program, which keeps its worlds apart from others. No process
/// listens there.
std::string own_port() {
  static const std::string port = free_port();
  return port;
}

/// The variables of one of two ranks that is started by hand, with these instead of some.
Variables by_hand(const std::string& rank, Variables variables = {}) {
  variables.insert({{"RANK", rank},
                    {"WORLD_SIZE", "2"},
                    {"MASTER_ADDR", "127.0.0.1"},
                    {"MASTER_PORT", own_port()},
                    {"LOCKSTEP_TIMEOUT", "30"}});
  return variables;
}

TEST(Launchers, MpirunOnOneHostGivesTheHostBackendUnlessMpiIsNamed) {
  if (!mpi::available().empty()) GTEST_SKIP() << mpi::available();
  EXPECT_THAT(Launched(under_mpirun(2)).wait(),
              prints({"rank 0 of 2 over host: 3\n", "rank 1 of 2 over host: 3\n"}));
  EXPECT_THAT(Launched(under_mpirun(3), {{"LOCKSTEP_BACKEND", "mpi"}}).wait(),
              prints({"rank 0 of 3 over mpi: 6\n", "rank 2 of 3 over mpi: 6\n"}));
}

TEST(Launchers, AnotherRankPrintsTheErrorOfARank0ThatLeftEarly) {
  if (!mpi::available().empty()) GTEST_SKIP() << mpi::available();
  EXPECT_THAT(Launched(under_mpirun(2, "leave-main")).wait().err,
              HasSubstr("rank 1 of 2: rank 0 left the world before barrier #1"));
}

TEST(Launchers, RanksThatKnowNoLocalSizeShareTheCoresOfTheirHost) {
  const long usable = std::thread::hardware_concurrency();
  const auto share = std::min(usable, std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN) / 2));
  for (const std::string set : {"", "2"}) {
    const auto said = started_by_hand(2, [&](const std::string& rank) {
      return by_hand(rank,
                     {{"MASTER_ADDR", lockstep::detail::host_name()}, {"OMP_NUM_THREADS", set}});
    });
    const auto expected = set.empty() ? share : std::min(usable, 2L);
    EXPECT_THAT(said, StartsWith(concat("threads: ", expected, '\n')));
  }
}

/// Two ranks over messages, each with its LOCKSTEP_TRANSPORT.
std::string over_transports(const std::string& of_rank_0, const std::string& of_rank_1) {
  return started_by_hand(2, [&](const std::string& rank) {
    return by_hand(rank, {{"LOCKSTEP_BACKEND", "tcp"},
                          {"LOCKSTEP_TRANSPORT", rank == "0" ? of_rank_0 : of_rank_1}});
  });
}

TEST(Launchers, RanksOverUcx) {
  if (!ucx::available().empty()) GTEST_SKIP() << ucx::available();
  EXPECT_THAT(over_transports("ucx", "ucx"), AllOf(HasSubstr("rank 0 of 2 over ucx: 3\n"),
                                                   HasSubstr("rank 1 of 2 over ucx: 3\n")));
  EXPECT_THAT(over_transports("ucx", "tcp"),
              HasSubstr("got LOCKSTEP_TRANSPORT=ucx, but rank 1 offers no UCX"));
}

/// Srun's variables of two ranks on so many nodes, with these instead of some.
VariablesOfRank by_srun(const std::string& nodes, const Variables& variables = {}) {
  return [=](const std::string& rank) {
    auto all = variables;
    all.insert({{"SLURM_PROCID", rank},
                {"SLURM_STEP_NUM_TASKS", "2"},
                {"SLURM_STEP_NUM_NODES", nodes},
                {"SLURM_JOB_ID", own_port()},
                {"SLURM_STEP_ID", "0"}});
    return all;
  };
}

TEST(Launchers, VariablesOfSrunAndTorchrun) {
  const auto by_torchrun = [](const std::string& rank) {
    return by_hand(rank, {{"LOCAL_WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "somewhere.example"},
                          {"TORCHELASTIC_RUN_ID", "none"},
                          {"TORCHELASTIC_RESTART_COUNT", "1"}});
  };
  for (const auto& variables : {by_srun("1"), VariablesOfRank(by_torchrun)}) {
    EXPECT_THAT(started_by_hand(2, variables), AllOf(HasSubstr("rank 0 of 2 over host: 3\n"),
                                                     HasSubstr("rank 1 of 2 over host: 3\n")));
  }
}

/// The world of four ranks on two hosts, with srun's variables and what `variables` exports.
void expect_world_by_srun(const std::string& variables) {
  if (!mpi::version().starts_with("Open MPI")) GTEST_SKIP() << "tools/two-hosts takes OpenMPI";
  const auto ended =
      Launched({LOCKSTEP_SOURCE_DIR "/tools/two-hosts", "--per-host", "2", "sh", "-c",
                "export SLURM_PROCID=$OMPI_COMM_WORLD_RANK SLURM_STEP_NUM_TASKS=4 "
                "SLURM_STEP_NUM_NODES=2 SLURM_JOB_ID=1 SLURM_STEP_ID=0; "
                "unset OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE "
                "OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE; " +
                    variables + " exec \"$@\"",
                "--", init_program, "where"})
          .wait();
  if (ended.code == 77) GTEST_SKIP() << ended.err;
  EXPECT_THAT(ended, prints({"rank 0 of 4 over hierarchical: 10\n",
                             "rank 3 is 1 of 2 on host 1 of 2, locally 7, across 6\n"}));
}

/// A file for LOCKSTEP_TOKEN_FILE.
std::string token_file(const TemporaryFolder& folder) {
  const auto file = (folder / "token").string();
  std::ofstream(file) << std::string(32, 't');
  std::filesystem::permissions(file, std::filesystem::perms::owner_read);
  return file;
}

TEST(Launchers, StepsOfAnAllocationDoNotMixTheirRanks) {
  const TemporaryFolder folder;
  const auto file = token_file(folder);
  const auto said = started_by_hand(2, [&](const std::string& rank) {
    return by_srun("2", {{"SLURM_STEP_ID", rank},
                         {"MASTER_ADDR", "127.0.0.1"},
                         {"MASTER_PORT", own_port()},
                         {"LOCKSTEP_TOKEN_FILE", file},
                         {"LOCKSTEP_TIMEOUT", "2"}})(rank);
  });
  EXPECT_THAT(said, AllOf(HasSubstr("waited 2 s for rank 1"), Not(HasSubstr(" of 2 over "))));
}

TEST_F(Nodes, OnOneMachineAreHostsOfTheirOwn) {
  for (const int ranks : {1, 2}) {
    launchers_.clear();
    if (ranks == 2) variables_["LOCKSTEP_INTERFACE"] = "lo";
    for (const int node : {0, 1}) start(node, ranks, {init_program, "where"});
    const auto ended = wait();
    const auto over = ranks == 1 ? "of 2 over tcp: 3\n" : "of 4 over hierarchical: 10\n";
    for (const auto& one : ended) EXPECT_THAT(one, prints({over, "on host "}));
    EXPECT_THAT(ended[1].out,
                HasSubstr(ranks == 1 ? "of 1 on host 1 of 2, locally 2, across 3"
                                     : "rank 3 is 1 of 2 on host 1 of 2, locally 7, across 6"));
  }
}

TEST_F(Nodes, SecondInitAfterAnErrorSaysSo) {
  for (const auto* algorithm : {"ring", "direct"}) {
    variables_["LOCKSTEP_ALGORITHM"] = algorithm;
    start(launchers_.empty() ? 0 : 1, 1, {init_program, "twice"});
  }
  for (const auto& ended : wait()) {
    EXPECT_THAT(ended.err, HasSubstr("init: called again after an error while ranks"));
  }
}

TEST(Launchers, SrunsVariablesOnTwoHostsWithMpiAndWithout) {
  // MPI finds its processes by PMIx, as it does under srun; who they are init() reads from srun's.
  expect_world_by_srun("");
  const TemporaryFolder folder;
  expect_world_by_srun(
      "unset PMIX_NAMESPACE; SLURM_STEP_NODELIST='10.77.0.[1-2]' "
      "LOCKSTEP_TOKEN_FILE=" +
      quoted(token_file(folder)));
}

/// Under both launchers of worlds: the launcher, or rank 0, sizes the heaps.
TEST(Launchers, WorldsFitALimitOfTheAddressSpace) {
  if (is_sanitized) GTEST_SKIP() << "a sanitizer maps more than any limit";
  const auto train = quoted(init_program) + " train";
  const auto expect_well = [](int gibibytes, const std::string& command) {
    const auto limit = concat("ulimit -v $((", gibibytes, " << 20)); ");
    const auto ended = Launched({"/bin/sh", "-c", limit + command}).wait();
    EXPECT_EQ(ended.code, 0) << ended.err;
  };
  for (const auto& [gibibytes, ranks] : {std::pair(6, 4), {8, 2}}) {
    expect_well(gibibytes,
                concat("exec ", quoted(lockstep_program()), " run -n ", ranks, ' ', train));
  }
  const auto alone = [&](const std::string& rank) {
    return concat("RANK=", rank, " WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=", own_port(),
                  ' ', train);
  };
  expect_well(4, alone("1") + " & " + alone("0") + " && wait $!");
}

TEST(Launchers, AnMpiThatKnowsOfNoOthersIsAnError) {
  if (!mpi::available().empty()) GTEST_SKIP() << mpi::available();
  if (mpi::version().starts_with("Open MPI v5")) GTEST_SKIP() << "it ends the process itself";
  EXPECT_THAT(started_by_hand(1, by_srun("2", {{"PMIX_NAMESPACE", "1"}})),
              HasSubstr("the launcher started 2 ranks, but"));
}

TEST(Launchers, OfTheOtherMpiIsAnErrorOnEveryRank) {
  if (!mpi::available().empty()) GTEST_SKIP() << mpi::available();
  const bool openmpi = mpi::version().starts_with("Open MPI");
  const std::string other = openmpi ? "/usr/bin/mpiexec.mpich" : "/usr/bin/mpiexec.openmpi";
  if (!std::filesystem::exists(other)) GTEST_SKIP() << other << " is not installed";
  std::vector<std::string> words{other};
  if (!openmpi) words.insert(words.end(), {"--oversubscribe", "--allow-run-as-root"});
  words.insert(words.end(), {"-n", "2", init_program});
  const auto said = Launched(words, {{"LOCKSTEP_BACKEND", "mpi"}}).wait().out;
  const std::string wrong = "the launcher started 2 ranks, but this program's MPI (";
  EXPECT_NE(said.find(wrong), said.rfind(wrong)) << said;
}

TEST(Launchers, MasterPortThatAnotherProgramHasIsNamed) {
  const auto listener = control::listen_at(control::Address::any(AF_INET));
  const auto port = std::to_string(control::Address::local(listener.get()).port());
  const auto said = started_by_hand(2, [&](const std::string& rank) {
    return by_hand(rank, {{"MASTER_PORT", port}, {"LOCKSTEP_TIMEOUT", "1"}});
  });
  EXPECT_THAT(said, AllOf(HasSubstr("rank 0 of 2 on host "), HasSubstr(" cannot listen on port "),
                          HasSubstr("tried for 1 s to reach rank 0 at 127.0.0.1:"),
                          HasSubstr("the listening program did not answer")));
}

TEST(Launchers, WaitForAnotherRankIsReportedBeforeItsTimeout) {
  const auto by_name = [](const std::string& rank) {
    return by_hand(rank, {{"MASTER_ADDR", "no-such-host.invalid"}});
  };
  const auto on_host = [](const std::string& rank) {
    return by_srun("1", {{"SLURM_JOB_ID", own_port() + rank}})(rank);
  };
  struct Wait {
    Variables variables;
    std::string verb;
    std::string what;
  };
  const std::vector<Wait> waits{
      {by_name("0"), "waited", "for rank 1"},
      {by_name("1"), "tried for", "to reach rank 0: the name 'no-such-host.invalid': "},
      {on_host("0"), "waited", "for rank 1 to call init"},
      {on_host("1"), "waited", "for rank 0 to call init"}};
  std::deque<Launched> ranks;
  for (auto [variables, verb, what] : waits) {
    variables["LOCKSTEP_STALL_WARNING"] = "0.5";
    variables["LOCKSTEP_TIMEOUT"] = "1";
    ranks.emplace_back(Words{init_program}, variables);
  }
  for (std::size_t i = 0; i < waits.size(); ++i) {
    const auto ended = ranks[i].wait();
    // The search for a name may take any time.
    EXPECT_THAT(ended.err, AllOf(HasSubstr(concat(" has ", waits[i].verb, ' ')),
                                 HasSubstr(" s " + waits[i].what)));
    EXPECT_THAT(ended.out, HasSubstr(concat(' ', waits[i].verb, " 1 s ", waits[i].what)));
  }
}

TEST(Launchers, RanksByHandOnSeveralHostsFormAHierarchyOverTcp) {
  for (const auto& [hosts, backend] : {std::pair("aabb", "hierarchical"), {"abcd", "tcp"}}) {
    const auto said = started_by_hand(4, [letters = std::string(hosts)](const std::string& rank) {
      const auto host = letters.substr(std::stoul(rank), 1);
      return by_hand(rank, {{"WORLD_SIZE", "4"}, {"LOCKSTEP_HOST", host}});
    });
    for (const char* rank : {"0", "1", "2", "3"}) {
      EXPECT_THAT(said,
                  HasSubstr(std::string("rank ") + rank + " of 4 over " + backend + ": 10\n"));
    }
  }
}

/// A rank of two on this machine that is started by hand.
Launched rank_over(const std::string& backend, const std::string& rank, const char* behaviour,
                   const std::string& device = "cpu") {
  return Launched({init_program, behaviour}, by_hand(rank, {{"LOCKSTEP_BACKEND", backend},
                                                            {"LOCKSTEP_DEVICE", device},
                                                            {"LOCAL_RANK", rank},
                                                            {"LOCAL_WORLD_SIZE", "2"}}));
}

TEST(Launchers, ALateErrorOfTheLastRankIsPrinted) {
  for (const char* backend : {"host", "tcp"}) {
    auto first = rank_over(backend, "0", "late-main");
    EXPECT_THAT(rank_over(backend, "1", "late-main").wait().err,
                HasSubstr("init_program: no such file\n"));
    EXPECT_EQ(first.wait().err, "");
  }
}

TEST(Launchers, AnErrorOfARankIsNotPrintedByOneThatIsStillInInit) {
  for (const char* backend : {"host", "tcp"}) {
    auto first = rank_over(backend, "0", "sum-main", "cuda");
    EXPECT_EQ(rank_over(backend, "1", "throw-early", "cuda").wait().code, 1);
    const auto ended = first.wait();
    EXPECT_EQ(ended.code, 1);
    EXPECT_EQ(ended.err, "") << backend;
  }
}

TEST(Launchers, RanksOfMpirunMayUseTcp) {
  if (!mpi::available().empty()) GTEST_SKIP() << mpi::available();
  const auto ended = Launched(under_mpirun(2), {{"LOCKSTEP_BACKEND", "tcp"},
                                                {"MASTER_ADDR", "localhost"},
                                                {"MASTER_PORT", own_port()}})
                         .wait();
  EXPECT_THAT(ended, prints({"rank 1 of 2 over tcp: 3\n"}));
}

TEST(Launchers, TokenFileThatOthersCanReadIsRefused) {
  const TemporaryFolder folder;
  const auto path = (folder / "token").string();
  std::ofstream(path) << std::string(32, 'x');
  const auto said = [&](const std::string& size) {
    return started_by_hand(2, [&](const std::string& rank) {
      return by_hand(rank, {{"LOCKSTEP_TOKEN_FILE", rank == size ? "" : path},
                            {"LOCKSTEP_TIMEOUT", size == "none" ? "30" : "5"}});
    });
  };
  EXPECT_THAT(said("none"), HasSubstr("which other users can read; expected mode 0600"));
  std::filesystem::permissions(path, std::filesystem::perms(0600));
  EXPECT_THAT(said("none"), HasSubstr("rank 1 of 2 over host: 3\n"));
  EXPECT_THAT(said("1"), HasSubstr("it belongs to another world: its token differs"));
}

}  // namespace
}  // namespace lockstep::testing
