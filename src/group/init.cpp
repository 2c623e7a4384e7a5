#include "lockstep/init.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <optional>
#include <string>
#include <tuple>

#include "comm/hierarchical/hierarchical_communicator.h"
#include "comm/host/host.h"
#include "comm/host/rendezvous.h"
#include "comm/mpi/mpi.h"
#include "core/environment.h"
#include "core/memory.h"
#include "core/text.h"
#include "group/rank_options.h"
#include "group/record_errors.h"
#include "lockstep/denormals.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {
namespace {

using detail::concat;

/// Set by the first init() that found its world; never cleared, since a world cannot be joined
/// twice.
std::atomic<bool> joined{false};

std::string shown(const char* name, const std::optional<int>& value) {
  return concat(name, value ? concat("=", *value) : " unset");
}

std::string shown(const char* name) {
  const auto value = detail::variable(name);
  return concat(name, value ? concat("=", *value) : " unset");
}

/// A world whose launcher, or whose other ranks, are to see the error that ends this process.
Group join(const std::shared_ptr<host::World>& world, int rank, host::Options options) {
  options.keep_world = true;
  detail::record_errors_in(world, rank);
  return Group(host::create(world, rank, options));
}

/// The world that `lockstep run` made.
Group join_launched(const Environment& environment, host::Options options) {
  const auto& [rank, size, fd] =
      std::tie(environment.rank, environment.world_size, environment.arena_fd);
  if (!rank || !size || !fd || *rank >= *size) {
    throw InvalidArgument(concat("init: contradictory environment: ", shown("LOCKSTEP_RANK", rank),
                                 ", ", shown("LOCKSTEP_WORLD_SIZE", size), ", ",
                                 shown("LOCKSTEP_ARENA_FD", fd),
                                 "; expected all three from `lockstep run`, or none"));
  }
  options.watch = true;
  options.supervised = true;
  return join(host::World::attach(*fd, *size), *rank, options);
}

/// Memory that the ranks of this host, started by another launcher, meet in.
Group meet(const Launcher& launcher, host::Options options) {
  if (const auto why = host::available(); !why.empty()) {
    throw BackendUnavailable(concat("init: backend host does not work here: ", why));
  }
  std::string job = launcher.job;
  if (job.empty()) job = host::job_by_ancestor("PMI_RANK");
  job += concat(" by ", launcher.name());
  options.watch = true;
  const auto world = host::meet(job, launcher.rank, launcher.size, options.timeout,
                                {options.launcher, options.launcher_name});
  return join(world, launcher.rank, options);
}

Group join_mpi(Backend backend, const host::Options& options, const Environment& environment,
               int expected_size) {
  const mpi::Options between_hosts{.timeout = options.timeout,
                                   .threads_per_rank = options.threads_per_rank,
                                   .cores = options.cores,
                                   .algorithm = mpi::parse_algorithm(environment.algorithm),
                                   .progress = environment.progress,
                                   .host = environment.host,
                                   .interface = environment.interface,
                                   .heartbeat = environment.heartbeat,
                                   .expected_size = expected_size};
  if (backend == Backend::mpi) return Group(mpi::create(between_hosts));
  return Group(hierarchical::create({.between_hosts = between_hosts, .inside = options}));
}

/// A world of several ranks that another launcher started.
Group join_foreign(const Launcher& launcher, Backend backend, const host::Options& options,
                   const Environment& environment) {
  const auto who = concat("init: started by ", launcher.name(), " as rank ", launcher.rank, " of ",
                          launcher.size);
  if (launcher.one_host() && !needs_mpi(backend)) return meet(launcher, options);
  if (backend == Backend::host) {
    throw InvalidArgument(concat(who, ", not all on this host; backend host cannot reach them"));
  }
  if (!launcher.starts_mpi()) {
    throw BackendUnavailable(
        concat(who,
               needs_mpi(backend) ? ", whose processes no MPI knows"
                                  : concat(", not all on this host as far as told by ",
                                           shown("LOCAL_WORLD_SIZE"), ", ", shown("MASTER_ADDR")),
               "; start worlds of several hosts with mpirun or srun"));
  }
  if (const auto why = mpi::available(); !why.empty()) {
    throw BackendUnavailable(concat(who, "; ", why));
  }
  return join_mpi(backend, options, environment, launcher.size);
}

/// As many compute threads as are this rank's share of the cores. OMP_NUM_THREADS or a restricted
/// set of cores takes precedence.
void share_cores(const Launcher& launcher) {
  const auto online = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  const bool bound = detail::usable_cores() < online;
  if (bound || std::getenv("OMP_NUM_THREADS") != nullptr) return;
  at::set_num_threads(std::max(1, online / launcher.local_size.value_or(1)));
}

}  // namespace

bool detail::has_joined() { return joined; }

int restart_count() { return Environment::get().restart_count; }

Group init(const InitOptions& options) {
  if (detail::inside_spawn()) {
    throw InvalidArgument("init: called inside spawn(); use the Group that spawn() passed",
                          {.operation = "init"});
  }
  if (joined.exchange(true)) {
    throw InvalidArgument(
        "init: called a second time in this process; keep the Group that the first call returned, "
        "or start new processes for a new world",
        {.operation = "init"});
  }
  const bool flushed_before = flushes_denormals();
  const auto take_back = [&] {
    // Nothing was joined: the caller may mend it and try again.
    joined = false;
    if (flushes_denormals() != flushed_before) {
      detail::flush_denormals_in_compute_threads(flushed_before);
    }
  };
  try {
    const auto& environment = Environment::get();
    detail::record_uncaught_errors();
    const bool launched = environment.rank || environment.world_size || environment.arena_fd;
    const auto backend = options.backend.value_or(environment.backend);
    if (!environment.launcher_problem.empty()) throw InvalidArgument(environment.launcher_problem);
    if (options.keep_freed_memory) keep_freed_memory();
    const auto& launcher = environment.launcher;
    const bool foreign = launcher && launcher->size > 1;
    if (foreign) share_cores(*launcher);
    // Before any of the library's threads is created: they start with this thread's setting.
    detail::flush_denormals_in_compute_threads(
        detail::flush_denormals_setting(options.flush_denormals));
    auto ranks = detail::rank_options(options, at::get_num_threads());
    if (foreign && launcher->has_ended()) {
      throw CommError(concat("init rank ", launcher->rank, " of ", launcher->size,
                             ": the launcher of the ranks, ", launcher->name(), ", has ended"));
    }
    if (launcher) {
      ranks.launcher = static_cast<pid_t>(launcher->process());
      ranks.launcher_name = concat(launcher->name(), ", process ", ranks.launcher);
    }
    if (foreign) {
      // Bound ranks see their own cores only.
      ranks.cores = std::min(ranks.cores * launcher->local_size.value_or(1),
                             static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
      return join_foreign(*launcher, backend, ranks, environment);
    }
    if (launched && needs_mpi(backend)) {
      throw InvalidArgument(
          concat("init: started by lockstep run, whose processes no MPI knows, with backend ",
                 name(backend), "; start the program with mpirun"));
    }
    if (launched) return join_launched(environment, ranks);
    if (needs_mpi(backend)) return join_mpi(backend, ranks, environment, launcher ? 1 : 0);
    return Group(host::create(host::World::create(1), 0, ranks));
  } catch (Error& error) {
    error.set_operation("init");
    const bool refused = error.kind() == ErrorKind::invalid_argument ||
                         error.kind() == ErrorKind::backend_unavailable;
    if (refused) take_back();
    throw;
  }
}

}  // namespace lockstep
