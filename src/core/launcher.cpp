#include "core/launcher.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "core/enum_names.h"
#include "core/environment.h"
#include "core/system/process.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {
namespace {

using detail::concat;
using detail::integer_variable;
using detail::variable;
using detail::variables_text;
using Kind = Launcher::Kind;

/// The names of a launcher's variables.
struct Names {
  Kind kind;
  const char* rank;
  const char* size;
  const char* local_size;
  std::array<const char*, 4>
      job;  ///< names of variables that identify the job; null for unused entries
};

// Innermost first: torchrun and mpirun are started under srun, not the other way round.
constexpr std::array launchers{
    Names{Kind::torchrun,
          "RANK",
          "WORLD_SIZE",
          "LOCAL_WORLD_SIZE",
          {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}},
    Names{Kind::openmpi,
          "OMPI_COMM_WORLD_RANK",
          "OMPI_COMM_WORLD_SIZE",
          "OMPI_COMM_WORLD_LOCAL_SIZE",
          {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_precondition_transports"}},
    Names{Kind::hydra, "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", {}},
    Names{Kind::by_hand, "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", {"MASTER_ADDR", "MASTER_PORT"}},
    Names{Kind::srun,
          "SLURM_PROCID",
          "SLURM_STEP_NUM_TASKS",
          nullptr,
          {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
};

/// Throws: InvalidArgument if one of rank and number of ranks is set without the other.
void expect_both(const Names& names) {
  const bool has_rank = variable(names.rank).has_value();
  if (has_rank == variable(names.size).has_value()) return;
  throw InvalidArgument(
      concat("init: incomplete environment: ", variables_text({names.rank, names.size}),
             "; expected both, or neither: set ",
             has_rank ? concat(names.size, " to the number of ranks")
                      : concat(names.rank, " to the rank of this process"),
             ", or unset ", has_rank ? names.rank : names.size));
}

bool set(const Names& names) {
  switch (names.kind) {
    case Kind::torchrun:
      return variable("TORCHELASTIC_RUN_ID").has_value();
    case Kind::by_hand:
    case Kind::srun:
      // A batch script also has SLURM_PROCID, but is not a step of several tasks. Another
      // launcher's ranks may have a RANK of their own.
      return variable(names.size).has_value();
    default:
      return variable(names.size) || variable(names.rank);
  }
}

bool is_loopback(std::string_view address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

std::optional<int> local_size(const Names& names, int size) {
  if (names.kind == Kind::srun) {
    const auto nodes = integer_variable("SLURM_STEP_NUM_NODES", 1);
    return nodes == 1 ? std::optional(size) : std::nullopt;
  }
  return integer_variable(names.local_size, 1);
}

Launcher read_from(const Names& names) {
  if (variable(names.size) != "1") expect_both(names);
  auto rank = integer_variable(names.rank, 0);
  const auto size = integer_variable(names.size, 1);
  if (size == 1 && !rank) rank = 0;
  if (!rank || !size || *rank >= *size) {
    throw InvalidArgument(
        concat("init: contradictory environment: ", variables_text({names.rank, names.size}),
               "; expected a rank below the number of ranks"));
  }
  const bool by_hand = names.kind == Kind::by_hand;
  Launcher launcher{.kind = names.kind, .rank = *rank, .size = *size};
  launcher.local_size = local_size(names, *size);
  const bool here = by_hand && is_loopback(variable("MASTER_ADDR").value_or(""));
  if (here && !launcher.local_size && !variable("KUBERNETES_SERVICE_HOST")) {
    launcher.local_size = *size;
    launcher.local_size_is_guess = true;
  }
  if (launcher.local_size && *launcher.local_size > *size) {
    throw InvalidArgument(
        concat("init: contradictory environment: ", variables_text({names.local_size, names.size}),
               "; expected no more ranks on this host than in all"));
  }
  for (const char* name : names.job) {
    const auto value = name != nullptr ? variable(name) : std::nullopt;
    if (value) launcher.job += concat(launcher.job.empty() ? "" : " ", *value);
  }
  if (by_hand && *size > 1 && !(variable("MASTER_ADDR") && variable("MASTER_PORT"))) {
    throw InvalidArgument(
        concat("init: incomplete environment: ",
               variables_text({"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}),
               "; expected all four, or none"));
  }
  return launcher;
}

}  // namespace

std::string first_host(const std::string& list) {
  const auto bracket = list.find('[');
  if (bracket == 0 || list.find_first_of("[,") == std::string::npos) return list;
  if (list.find(',') < bracket) return list.substr(0, list.find(','));
  const auto end = list.find_first_of("-,]", bracket);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
}

// srun starts MPI processes with --mpi=pmix. With pmi2 they have the variables of Kind::hydra.
bool Launcher::starts_mpi() const {
  if (kind == Kind::srun) return variable("PMIX_NAMESPACE").has_value();
  return kind != Kind::torchrun && kind != Kind::by_hand;
}

std::string_view Launcher::name() const {
  constexpr detail::EnumNames<Kind::srun> names("OpenMPI's mpirun", "MPICH's mpiexec", "torchrun",
                                                "a hand-made RANK and WORLD_SIZE", "srun");
  return names.of(kind);
}

long Launcher::process() const {
  if (kind == Kind::by_hand) return 0;
  const auto names = std::ranges::find(launchers, kind, &Names::kind);
  const long pid =
      detail::ancestor_without(kind == Kind::torchrun ? "TORCHELASTIC_RUN_ID" : names->rank);
  return pid > 1 ? pid : 0;
}

bool Launcher::has_ended() const {
  // In a container, mpirun itself may be process 1.
  constexpr std::array<std::string_view, 8> of_openmpi{"mpirun",  "mpiexec", "orterun", "orted",
                                                       "prterun", "prte",    "prted",   "lockstep"};
  if (kind != Kind::openmpi || detail::ancestor_without("OMPI_COMM_WORLD_RANK") != 1) return false;
  const auto first = detail::read_process(1).name;
  return std::ranges::none_of(of_openmpi,
                              [&](std::string_view name) { return first.starts_with(name); });
}

std::optional<Launcher> Launcher::read() {
  std::optional<Launcher> found;
  for (const auto& names : launchers) {
    if (!set(names)) continue;
    const auto launcher = read_from(names);
    if (!found) {
      found = launcher;
      continue;
    }
    // Variables of several launchers may be set, such as SLURM's and those of an mpirun inside. If
    // they describe the same world, they must agree.
    const bool about_same = launcher.kind != Kind::srun && found->kind != Kind::torchrun;
    if (about_same && (launcher.rank != found->rank || launcher.size != found->size)) {
      throw InvalidArgument(concat("init: contradictory environment: rank ", found->rank, " of ",
                                   found->size, " by ", found->name(), ", but ",
                                   variables_text({names.rank, names.size}),
                                   "; unset the outdated variables"));
    }
  }
  if (!found) expect_both(*std::ranges::find(launchers, Kind::by_hand, &Names::kind));
  return found;
}

}  // namespace lockstep
