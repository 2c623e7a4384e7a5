#include <string>
#include <vector>

#include "comm/mpi/mpi.h"
#include "core/system/denormals_guard.h"
#include "core/system/topology.h"
#include "lockstep/denormals.h"
#include "tests/launch/launched.h"
#include "tests/matchers.h"

namespace lockstep::testing {
namespace {

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
  EXPECT_THAT(wrong, ends(2, {"--denormals"}));
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
       {"lockstep", "compiler", "kernel", "glibc", "LibTorch", "backend host", "backend mpi", "UCX",
        "CPU targets", "cores", "NUMA node", "memory", "huge pages", "memfd", "open files"}) {
    EXPECT_THAT(ended.out, HasSubstr(word));
  }
}

TEST(Doctor, TellsWhichWorldAProgramWouldJoin) {
  const Launched::Variables by_hand{
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h0"}, {"MASTER_PORT", "29500"}};
  auto by_tcp = by_hand;
  by_tcp["LOCKSTEP_BACKEND"] = "tcp";
  auto by_ucx = by_hand;
  by_ucx["LOCKSTEP_TRANSPORT"] = "ucx";
  auto by_mpi = by_hand;
  by_mpi["LOCKSTEP_BACKEND"] = "mpi";
  const Launched::Variables by_mpirun{{"OMPI_COMM_WORLD_RANK", "1"},
                                      {"OMPI_COMM_WORLD_SIZE", "2"},
                                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
  const std::pair<Launched::Variables, std::string> cases[] = {
      {{}, "no launcher of several ranks: one rank"},
      {by_hand, "TCP between hosts, shared memory inside a host; rank 0 listens at h0:29500"},
      {by_tcp, "TCP between all ranks; rank 0 listens at h0:29500"},
      {by_ucx, "UCX between hosts, shared memory inside a host; rank 0 listens at h0:29500"},
      {by_mpi, "as rank 1 of 2, which does not start MPI processes"},
      {by_mpirun, mpi::available().empty()
                      ? "rank 1 of 2 by OpenMPI's mpirun: MPI between hosts, shared memory"
                      : "init: started by OpenMPI's mpirun as rank 1 of 2; " + mpi::available()}};
  for (const auto& [variables, expected] : cases) {
    const auto ended = Launched({lockstep_program(), "doctor"}, variables).wait();
    EXPECT_THAT(ended.out, HasSubstr(expected));
  }
  EXPECT_THAT(run_lockstep({"-n", "2", lockstep_program(), "doctor"}).out,
              HasSubstr("rank 1 of 2 by lockstep run: shared memory"));
}

TEST(Doctor, HidesTheSecretsOfAJob) {
  const auto ended =
      Launched({lockstep_program(), "doctor"}, {{"LOCKSTEP_TOKEN", std::string(64, 'a')}}).wait();
  EXPECT_THAT(ended.out, ContainsRegex("LOCKSTEP_TOKEN +[(]set[)]"));
  EXPECT_THAT(ended.out, Not(HasSubstr(std::string(64, 'a'))));
}

TEST(Help, NamesEveryCommand) {
  const auto ended = Launched({lockstep_program(), "--help"}).wait();
  EXPECT_EQ(ended.code, 0);
  for (const char* word : {"run", "bench", "doctor"}) EXPECT_THAT(ended.out, HasSubstr(word));
}

}  // namespace
}  // namespace lockstep::testing
