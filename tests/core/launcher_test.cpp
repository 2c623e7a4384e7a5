#include "core/launcher.h"

#include <chrono>
#include <map>
#include <sstream>

#include "core/environment.h"
#include "core/system/denormals_guard.h"
#include "tests/in_child.h"
#include "tests/matchers.h"
#include "tests/variable.h"

namespace lockstep::testing {
namespace {

using Kind = Launcher::Kind;
using Variables = std::map<std::string, std::string>;

/// The launcher of exactly these variables.
std::optional<Launcher> read(const Variables& variables) {
  std::istringstream known(
      "RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID "
      "TORCHELASTIC_RESTART_COUNT OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE "
      "OMPI_COMM_WORLD_LOCAL_SIZE PMIX_NAMESPACE OMPI_MCA_ess_base_jobid "
      "OMPI_MCA_orte_precondition_transports PMI_RANK PMI_SIZE MPI_LOCALNRANKS SLURM_PROCID "
      "SLURM_STEP_NUM_TASKS SLURM_STEP_NUM_NODES SLURM_JOB_ID SLURM_STEP_ID");
  for (std::string name; known >> name;) unsetenv(name.c_str());
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  return Launcher::read();
}

std::string refusal(const Variables& variables) {
  return message_of<InvalidArgument>([&] { read(variables); });
}

const Variables openmpi{{"OMPI_COMM_WORLD_RANK", "1"},
                        {"OMPI_COMM_WORLD_SIZE", "4"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                        {"PMIX_NAMESPACE", "77"}};
const Variables srun{
    {"SLURM_PROCID", "2"}, {"SLURM_STEP_NUM_TASKS", "3"}, {"SLURM_STEP_NUM_NODES", "1"}};
const Variables by_hand{
    {"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "1"}};

Variables with(Variables some, const Variables& more) {
  for (const auto& [name, value] : more) some[name] = value;
  return some;
}

TEST(LauncherVariables, NoneIsNoLauncher) { EXPECT_FALSE(read({})); }

TEST(LauncherVariables, OfEachLauncher) {
  const auto by_openmpi = read(openmpi).value();
  EXPECT_EQ(by_openmpi.kind, Kind::openmpi);
  EXPECT_EQ(by_openmpi.rank, 1);
  EXPECT_EQ(by_openmpi.size, 4);
  EXPECT_EQ(by_openmpi.local_size, 2);
  EXPECT_EQ(by_openmpi.job, "77");
  EXPECT_FALSE(by_openmpi.one_host());

  const auto by_hydra =
      read({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}}).value();
  EXPECT_EQ(by_hydra.kind, Kind::hydra);
  EXPECT_TRUE(by_hydra.one_host());
  EXPECT_EQ(by_hydra.job, "");

  const auto by_srun = read(srun).value();
  EXPECT_EQ(by_srun.kind, Kind::srun);
  EXPECT_TRUE(by_srun.one_host());
}

TEST(LauncherProcess, IsTheNearestThatWasStartedWithoutTheVariablesIfNotByHand) {
  EXPECT_EQ(read(by_hand)->process(), 0);
  EXPECT_EQ(read(openmpi)->process(), ::getppid());
  EXPECT_EQ(read({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}})->process(), ::getppid());
}

/// Calls fn in a process whose parent has ended, and returns its result. Returns nothing where
/// another process than the system's first one takes in such processes.
std::optional<bool> orphaned(const std::function<bool()>& fn) {
  const auto said = in_child([&]() -> std::string {
    const pid_t own = ::getpid();
    if (::fork() != 0) return "";
    while (::getppid() == own) ::usleep(1000);
    return ::getppid() != 1 ? "" : fn() ? "yes" : "no";
  });
  return said.empty() ? std::nullopt : std::optional(said == "yes");
}

TEST(LauncherProcess, HasEndedWhereTheFirstProcessHasTakenInTheRank) {
  const auto launcher = read(openmpi);
  EXPECT_FALSE(launcher->has_ended());
  const auto ended = orphaned([&] { return launcher->has_ended(); });
  if (!ended) GTEST_SKIP() << "orphans are not handed to process 1 here";
  EXPECT_TRUE(*ended);
}

TEST(LauncherVariables, TheInnermostLauncherCountsAndMpirunBeforeEqualOnesByHand) {
  for (const auto& outer : {srun, by_hand}) {
    EXPECT_EQ(read(with(openmpi, outer)).value().kind, Kind::openmpi);
  }
}

TEST(LauncherVariables, WhereByHandIsOneHost) {
  const Variables here{
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "29500"}};
  EXPECT_TRUE(read(with(here, {{"LOCAL_WORLD_SIZE", "2"}}))->one_host());
  EXPECT_FALSE(read(with(here, {{"LOCAL_WORLD_SIZE", "1"}}))->one_host());
  EXPECT_FALSE(read(with(here, {{"MASTER_ADDR", "192.0.2.1"}}))->local_size);
  // Rank 0's pod of a PyTorchJob has localhost, the others its name.
  EXPECT_FALSE(read(here)->one_host());
  EXPECT_EQ(read(here)->local_size, 2);
  EXPECT_FALSE(read(with(here, {{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}}))->local_size);
}

TEST(LauncherVariables, WhatCannotBeIsShown) {
  const struct {
    Variables variables;
    const char* text;
  } cases[] = {
      {with(openmpi, {{"OMPI_COMM_WORLD_RANK", "4"}}),
       "OMPI_COMM_WORLD_RANK=4, OMPI_COMM_WORLD_SIZE=4"},
      {with(with(openmpi, by_hand), {{"WORLD_SIZE", "8"}}),
       "rank 1 of 4 by OpenMPI's mpirun, but RANK=1, WORLD_SIZE=8"},
      {{{"RANK", "1"}, {"WORLD_SIZE", "2"}}, "MASTER_PORT unset"},
      {{{"PMI_RANK", "one"}, {"PMI_SIZE", "2"}}, "PMI_RANK: got 'one'"},
      {with(openmpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "5"}}), "OMPI_COMM_WORLD_LOCAL_SIZE=5"},
      // A rank without the number of ranks, maybe a variable of another program.
      {{{"RANK", "captain"}}, "or unset RANK"},
      {{{"OMPI_COMM_WORLD_RANK", "0"}}, "set OMPI_COMM_WORLD_SIZE"},
      {{{"PMI_RANK", "0"}}, "set PMI_SIZE to the number of ranks"},
      {{{"TORCHELASTIC_RUN_ID", "7"}, {"RANK", "0"}}, "set WORLD_SIZE"},
      // A number of ranks without a rank.
      {{{"OMPI_COMM_WORLD_SIZE", "2"}}, "or unset OMPI_COMM_WORLD_SIZE"},
      {{{"PMI_SIZE", "2"}}, "set PMI_RANK"},
      {{{"SLURM_STEP_NUM_TASKS", "2"}}, "set SLURM_PROCID"},
  };
  for (const auto& [variables, text] : cases) {
    EXPECT_THAT(refusal(variables), HasSubstr(text));
  }
  EXPECT_EQ(
      refusal({{"RANK", "3"}}),
      "init: incomplete environment: RANK=3, WORLD_SIZE unset; expected both, or neither: set "
      "WORLD_SIZE to the number of ranks, or unset RANK");
  EXPECT_EQ(
      refusal({{"WORLD_SIZE", "2"}}),
      "init: incomplete environment: RANK unset, WORLD_SIZE=2; expected both, or neither: set "
      "RANK to the rank of this process, or unset WORLD_SIZE");
  EXPECT_EQ(read({{"WORLD_SIZE", "1"}})->size, 1);
}

TEST(LauncherVariables, ARankOfAnotherProgramDoesNotMatterToALauncher) {
  EXPECT_EQ(read(with(openmpi, {{"RANK", "3"}}))->rank, 1);
  EXPECT_EQ(read(with(srun, {{"RANK", "2"}}))->kind, Kind::srun);
  // A batch script is no step of several tasks.
  EXPECT_FALSE(read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}));
}

TEST(LauncherVariables, WhatLockstepRunSaysGoesFirst) {
  read(with(openmpi, {{"LOCKSTEP_RANK", "0"}}));
  EXPECT_FALSE(Environment::read().launcher);
  unsetenv("LOCKSTEP_RANK");
  EXPECT_TRUE(Environment::read().launcher);
  unsetenv("OMPI_COMM_WORLD_RANK");
  EXPECT_THAT(Environment::read().launcher_problem, HasSubstr("OMPI_COMM_WORLD_RANK unset"));
  read({});
}

Environment read_with(const char* name, const char* text) {
  const Variable variable(name, text);
  return Environment::read();
}

TEST(BackendVariable, IsOneOfFour) {
  EXPECT_EQ(read_with("LOCKSTEP_BACKEND", "hierarchical").backend, Backend::hierarchical);
  EXPECT_EQ(read_with("LOCKSTEP_BACKEND", "mpi").backend, Backend::mpi);
  EXPECT_EQ(read_with("LOCKSTEP_BACKEND", nullptr).backend, Backend::automatic);
  for (const auto& [name, expected] :
       {std::pair("LOCKSTEP_BACKEND", "auto"), {"LOCKSTEP_PROGRESS", "auto, thread or wait"}}) {
    EXPECT_THAT(message_of<InvalidArgument>([&] { read_with(name, "gloo"); }),
                HasSubstr(std::string(name) + ": got 'gloo', expected " + expected));
  }
}

TEST(DenormalsVariable, IsZeroOrOne) {
  constexpr auto name = "LOCKSTEP_FLUSH_DENORMALS";
  EXPECT_EQ(read_with(name, nullptr).flush_denormals, detail::can_flush_denormals);
  EXPECT_FALSE(read_with(name, "0").flush_denormals);
  EXPECT_TRUE(read_with(name, "1").flush_denormals);
  for (const char* text : {"2", "-1", "flush", "1x"}) {
    EXPECT_THROW(read_with(name, text), InvalidArgument) << text;
  }
}

TEST(NetworkVariables, AreReadAndChecked) {
  EXPECT_EQ(read_with("LOCKSTEP_INTERFACE", "eth1").interface, "eth1");
  EXPECT_EQ(read_with("LOCKSTEP_INTERFACE", nullptr).interface, "");
  constexpr auto heartbeat = "LOCKSTEP_HEARTBEAT";
  EXPECT_EQ(read_with(heartbeat, "0.25").heartbeat, std::chrono::milliseconds(250));
  EXPECT_EQ(read_with(heartbeat, nullptr).heartbeat, std::chrono::seconds(15));
  for (const char* text : {"0", "-1", "soon", "inf", "nan", "2e9"}) {
    EXPECT_THAT(message_of<InvalidArgument>([&] { read_with(heartbeat, text); }),
                HasSubstr("expected seconds above 0 and at most 1e9"));
  }
  constexpr auto stall_warning = "LOCKSTEP_STALL_WARNING";
  EXPECT_EQ(read_with(stall_warning, "0.0").stall_warning, std::chrono::milliseconds(0));
  EXPECT_THROW(read_with(stall_warning, "-1"), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::testing
