#include "join/way.h"

#include <string>

#include "comm/control/joining.h"
#include "comm/mpi/mpi.h"
#include "core/launcher.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

std::string started_by(const Launcher& launcher) {
  return concat("init: started by ", launcher.name(), " as rank ", launcher.rank, " of ",
                launcher.size);
}

namespace {

/// Of a world of several ranks that another launcher has started.
Way way_of(const Launcher& launcher, Backend backend) {
  const auto prefix = started_by(launcher);
  const bool on_host = backend == Backend::automatic || backend == Backend::host;
  if (launcher.one_host() && on_host) return Way::one_host;
  if (backend == Backend::host) {
    throw InvalidArgument(concat(prefix,
                                 ", not all on this host, which backend host does not support; use "
                                 "backend hierarchical, tcp or mpi"));
  }
  if (backend == Backend::tcp) return Way::messages;
  if (launcher.starts_mpi()) {
    const auto why = mpi::available();
    if (why.empty()) return Way::mpi;
    throw BackendUnavailable(concat(prefix, "; ", why));
  }
  if (backend != Backend::mpi) return Way::messages;
  throw BackendUnavailable(concat(prefix,
                                  ", which does not start MPI processes; use backend "
                                  "hierarchical or tcp, or start them with mpirun"));
}

}  // namespace

Way way_to_join(const Environment& environment, Backend backend) {
  if (!environment.launcher_problem.empty()) throw InvalidArgument(environment.launcher_problem);
  const auto& launcher = environment.launcher;
  if (launcher && launcher->size > 1) return way_of(*launcher, backend);
  const bool hosts = !environment.master.empty();
  if (hosts && backend != Backend::host && backend != Backend::mpi) return Way::launched_hosts;
  const bool launched = environment.rank || environment.world_size || environment.arena_fd;
  if (launched && !hosts && (backend == Backend::automatic || backend == Backend::host)) {
    return Way::launched;
  }
  if (launched) {
    throw InvalidArgument(concat("init: started by lockstep run, which ",
                                 backend == Backend::host  ? "has ranks on several hosts"
                                 : backend == Backend::tcp ? "uses shared memory on one host"
                                                           : "does not start MPI processes",
                                 ", with backend ", name(backend),
                                 "; use backend auto, or start it with mpirun"));
  }
  return backend == Backend::mpi || backend == Backend::hierarchical ? Way::mpi : Way::alone;
}

std::pair<std::string, std::uint16_t> place_of_rank_0(const Launcher& launcher) {
  std::string host(variable("MASTER_ADDR").value_or(""));
  auto port = integer_variable("MASTER_PORT", 1);
  if (launcher.kind == Launcher::Kind::srun) {
    if (host.empty()) host = first_host(std::string(variable("SLURM_STEP_NODELIST").value_or("")));
    if (!port) port = control::default_port;
    if (!variable("LOCKSTEP_TOKEN_FILE")) {
      throw InvalidArgument(concat(
          started_by(launcher),
          " without MPI: got LOCKSTEP_TOKEN_FILE unset, expected a file of mode 0600 that all "
          "hosts see, with the secret of this job; or ",
          launcher.starts_mpi() ? "leave LOCKSTEP_BACKEND unset"
                                : "start MPI processes by srun "
                                  "--mpi=pmix"));
    }
  }
  if (host.empty() || !port || *port > 65535) {
    throw InvalidArgument(concat(started_by(launcher), ", with backend tcp: got ",
                                 variables_text({"MASTER_ADDR", "MASTER_PORT"}),
                                 "; expected the host of rank 0 and a port that is free there"));
  }
  return {host, static_cast<std::uint16_t>(*port)};
}

}  // namespace lockstep::detail
