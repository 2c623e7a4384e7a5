#include <sys/stat.h>

#include <algorithm>

#include "comm/mpi/mpi.h"
#include "core/system/denormals_guard.h"
#include "core/system/topology.h"
#include "lockstep/denormals.h"
#include "tests/launch/launched.h"

// What ranks get from the launcher, what it inherits itself, and what doctor tells of both.

namespace lockstep::testing {
namespace {

TEST(RanksEnvironment, IsWhatTheTablesSay) {
  const auto script =
      concat("echo $LOCKSTEP_RANK $LOCKSTEP_WORLD_SIZE $OMP_NUM_THREADS $MALLOC_MMAP_MAX_ $MINE ",
             "$LOCKSTEP_FLUSH_DENORMALS; [ -e /proc/self/fd/$LOCKSTEP_ARENA_FD ] || echo no world");
  const auto ended =
      run_lockstep({"-n", "1", "--denormals", "flush", "sh", "-c", script},
                   {{"OMP_NUM_THREADS", "3"}, {"MINE", "kept"}, {"LOCKSTEP_FLUSH_DENORMALS", "0"}});
  EXPECT_EQ(ended.out, "0 1 3 0 kept 1\n");
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
  const auto shown = run_lockstep({"-n", "2", "--dry-run", "sh", "-c", "echo started"});
  EXPECT_EQ(shown.code, 0);
  EXPECT_EQ(shown.err, "");
  EXPECT_THAT(shown.out, AllOf(HasSubstr("Configuration\n"), HasSubstr("Places of the ranks\n"),
                               Not(HasSubstr("\nstarted"))));
  const auto started = run_lockstep({"-v", "-n", "1", "echo", "started"});
  EXPECT_EQ(started.out, "started\n");
  EXPECT_THAT(started.err, HasSubstr("Environment of every rank\n"));
}

TEST(Printed, HasEveryCommandAndWhatABugReportNeeds) {
  EXPECT_THAT(run_cli({"--help"}), prints({"run", "bench", "doctor"}));
  EXPECT_THAT(run_cli({"doctor"}),
              prints({"lockstep", "compiler", "kernel", "glibc", "LibTorch", "backend host",
                      "backend mpi", "UCX", "CPU targets", "cores", "NUMA node", "memory",
                      "huge pages", "shared heap", "open files"}));
}

TEST(Doctor, TellsWhichWorldAProgramWouldJoin) {
  const auto by_hand = [](const Launched::Variables& more) {
    Launched::Variables all{
        {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h0"}, {"MASTER_PORT", "29500"}};
    all.insert(more.begin(), more.end());
    return all;
  };
  const Launched::Variables by_mpirun{{"OMPI_COMM_WORLD_RANK", "1"},
                                      {"OMPI_COMM_WORLD_SIZE", "2"},
                                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
  const Launched::Variables by_srun{{"SLURM_PROCID", "0"},
                                    {"SLURM_STEP_NUM_TASKS", "2"},
                                    {"SLURM_STEP_NUM_NODES", "2"},
                                    {"SLURM_JOB_ID", "1"},
                                    {"SLURM_STEP_ID", "0"}};
  auto by_mpirun_over_tcp = by_mpirun;
  by_mpirun_over_tcp.insert({{"LOCKSTEP_BACKEND", "tcp"}, {"MASTER_ADDR", "h0"}});
  const std::pair<Launched::Variables, std::string> cases[] = {
      {{}, "no launcher of several ranks: one rank"},
      {by_hand({}), "TCP between hosts, shared memory inside a host; rank 0 listens at h0:29500"},
      {by_hand({{"LOCKSTEP_BACKEND", "tcp"}}), "TCP between all ranks; rank 0 listens at h0:29500"},
      {by_hand({{"LOCKSTEP_TRANSPORT", "ucx"}}),
       "UCX between hosts, shared memory inside a host; rank 0 listens at h0:29500"},
      {by_hand({{"LOCKSTEP_BACKEND", "mpi"}}),
       "as rank 1 of 2, which does not start MPI processes"},
      {{{"WORLD_SIZE", "1"}}, "no launcher of several ranks: one rank"},
      {{{"LOCKSTEP_BACKEND", "hierarchical"}},
       mpi::available().empty() ? "MPI" : "no launcher of several ranks: one rank"},
      {{{"LOCKSTEP_MASTER", "h0:1"},
        {"LOCKSTEP_RANK", "0"},
        {"LOCKSTEP_WORLD_SIZE", "2"},
        {"LOCKSTEP_BACKEND", "host"}},
       "has ranks on several hosts"},
      {by_srun,
       "started by srun as rank 0 of 2 without MPI: got LOCKSTEP_TOKEN_FILE unset, "
       "expected a file of mode 0600 that all hosts see"},
      {by_mpirun_over_tcp, "with backend tcp: got MASTER_ADDR=h0, MASTER_PORT unset"},
      {by_mpirun, mpi::available().empty()
                      ? "rank 1 of 2 by OpenMPI's mpirun: MPI between hosts, shared memory"
                      : "init: started by OpenMPI's mpirun as rank 1 of 2; " + mpi::available()}};
  for (const auto& [variables, expected] : cases)
    EXPECT_THAT(run_cli({"doctor"}, variables).out, HasSubstr(expected));
  EXPECT_THAT(run_lockstep({"-n", "2", lockstep_program(), "doctor"},
                           {{"LOCKSTEP_BACKEND", "hierarchical"}})
                  .out,
              HasSubstr("rank 1 of 2 by lockstep run: shared memory"));
  // The launcher is started by a rank of several hosts.
  EXPECT_THAT(run_lockstep({"-n", "2", lockstep_program(), "doctor"},
                           {{"LOCKSTEP_MASTER", "h0:1"}, {"LOCKSTEP_LOCAL_RANK", "0"}})
                  .out,
              HasSubstr("rank 1 of 2 by lockstep run: shared memory"));
}

TEST(Doctor, HidesTheSecretsOfAJob) {
  const auto ended = run_cli({"doctor"}, {{"LOCKSTEP_TOKEN", std::string(64, 'a')}});
  EXPECT_THAT(ended.out, ContainsRegex("LOCKSTEP_TOKEN +[(]set[)]"));
  EXPECT_THAT(ended.out, Not(HasSubstr(std::string(64, 'a'))));
}

/// The targets of a process's open descriptors, one a line.
std::string open_files(pid_t pid) {
  std::string files;
  for (const auto& entry : std::filesystem::directory_iterator(concat("/proc/", pid, "/fd"))) {
    std::error_code gone;
    files += std::filesystem::read_symlink(entry.path(), gone).string() + '\n';
  }
  return files;
}

TEST(World, IsNotInheritedBeyondItsRanks) {
  EXPECT_THAT(run_lockstep({"-n", "2", rank_program(), "descriptors", "1"}),
              prints({}, {"inheritable", "socket"}));
}

/// While a job runs: launcher, guardian and ranks use no socket, only ranks and the launcher hold
/// the world's memory, and it has no name in any file system. The flight record of each rank has
/// a name, and only the user can open it.
TEST(World, IsHeldByItsProcessesAlone) {
  const auto names_before = shared_memory_names();
  Launched job(run_command({"-n", "2", rank_program(), "stubborn", "1"}));
  job.await_output("pid ", 2);
  job.await_output("ready");

  EXPECT_THAT(names_before, ::testing::IsSupersetOf(shared_memory_names()));
  const auto records = flight_records(job.pid());
  EXPECT_THAT(records, SizeIs(2));
  for (const auto& path : records) {
    struct stat status {};
    EXPECT_EQ(stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600U);
  }
  EXPECT_THAT(open_files(job.pid()), HasSubstr("memfd"));
  const auto guardians = guardians_of(job.pid());
  EXPECT_THAT(guardians, SizeIs(1));
  for (const auto pid : children_of(job.pid())) {
    const auto files = open_files(pid);
    EXPECT_THAT(files, Not(HasSubstr("socket"))) << name_of(pid);
    if (std::ranges::find(guardians, pid) == guardians.end()) continue;
    EXPECT_EQ(std::ranges::count(files, '\n'), 4) << files;  // three standard streams and its pipe
    EXPECT_THAT(files, Not(HasSubstr("memfd")));
  }
  EXPECT_THAT(open_files(job.pid()), Not(HasSubstr("socket")));
}

// The launcher works whatever signal dispositions, signal mask, descriptors and limits it inherits.

/// The signals up to 31 of a line such as "SigIgn:" in /proc/self/status.
unsigned long signals_of(const std::string& status, const std::string& line) {
  const auto at = status.find(line + ":\t");
  EXPECT_NE(at, std::string::npos) << status;
  return std::stoul(status.substr(at + line.size() + 2), nullptr, 16) & 0x7fffffff;
}

/// A job that a program such as env or prlimit starts with these settings.
Words under(const Words& settings, const Words& arguments) {
  return joined({"/usr/bin/env"}, {settings, run_command(arguments)});
}

TEST(Inherited, IgnoredSigchldHidesNoEnd) {
  const auto well =
      Launched(under({"--ignore-signal=CHLD"}, {"-n", "2", "sh", "-c", "echo done"})).wait();
  EXPECT_EQ(well.code, 0) << well.err;
  EXPECT_EQ(well.out.size(), std::string("done\n[1] done\n").size());
  Launched failing(under({"--ignore-signal=CHLD"}, {"-n", "2", rank_program(), "exit-3", "1"}));
  EXPECT_THAT(failing.wait_for_all(),
              ends(3, {"rank 1 of 2 failed first: it ended with exit code 3"}));
}

TEST(Inherited, SignalsOfRanksAreUnblockedAndIgnoredButForSigchld) {
  const auto ended =
      Launched(under({"--block-signal", "--ignore-signal=CHLD", "--ignore-signal=HUP",
                      "--ignore-signal=ALRM", "--ignore-signal=PIPE"},
                     {"-n", "1", "grep", "Sig[BI]", "/proc/self/status"}))
          .wait();
  EXPECT_EQ(signals_of(ended.out, "SigBlk"), 0U);
  const unsigned long bits = 1UL << (SIGHUP - 1) | 1UL << (SIGALRM - 1) | 1UL << (SIGPIPE - 1);
  EXPECT_EQ(signals_of(ended.out, "SigIgn"), bits);
}

TEST(Inherited, ClosedStandardStreams) {
  for (const char* closed : {"<&-", ">&-", "2>&-", "<&- >&- 2>&-"}) {
    const auto ended =
        run_in_shell(concat("run -n 2 sh -c 'echo out; echo err >&2; cat' ", closed));
    EXPECT_EQ(ended.code, 0) << closed << ": " << ended.err;
  }
}

TEST(Inherited, ASmallStack) {
  const auto ended = run_in_shell(
      "run -n 2 --max-restarts 1 --restart-delay 0 sh -c 'seq "
      "30000; exit $LOCKSTEP_RANK'",
      "ulimit -s 64 && ");
  EXPECT_THAT(ended, ends(1, {"rank 1 of 2 failed first"}));
  EXPECT_FALSE(ended.by_signal);
  EXPECT_THAT(ended.out, HasSubstr("[1] 30000\n"));
}

TEST(Inherited, NoQueuedSignals) {
  EXPECT_THAT(
      Launched(under({"prlimit", "--sigpending=0"}, {"-n", "2", "sh", "-c", "echo done"})).wait(),
      prints({"[1] done\n"}));
}

}  // namespace
}  // namespace lockstep::testing
