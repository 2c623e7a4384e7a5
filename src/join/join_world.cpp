#include "join/join_world.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>

#include "comm/control/handshake.h"
#include "comm/control/joining.h"
#include "comm/hierarchical/hierarchical.h"
#include "comm/hierarchical/host_topology.h"
#include "comm/host/peer_watch.h"
#include "comm/host/world/rendezvous.h"
#include "comm/mpi/mpi.h"
#include "comm/tcp/tcp.h"
#include "core/environment.h"
#include "core/launcher.h"
#include "core/operation_error.h"
#include "core/system/memory.h"
#include "core/text.h"
#include "join/record_errors.h"
#include "lockstep/denormals.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {
namespace {

/// "init: started by srun as rank 0 of 2", the beginning of error texts.
std::string started_by(const Launcher& launcher) {
  return concat("init: started by ", launcher.name(), " as rank ", launcher.rank, " of ",
                launcher.size);
}

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
  if (launched && !hosts && backend != Backend::mpi && backend != Backend::tcp) {
    return Way::launched;
  }
  if (launched) {
    throw InvalidArgument(concat("init: started by lockstep run, which ",
                                 backend == Backend::host  ? "has ranks on several hosts"
                                 : backend == Backend::tcp ? "uses shared memory on one host"
                                                           : "does not start MPI processes",
                                 ", with backend ", name(backend), "; use backend auto",
                                 backend == Backend::mpi ? ", or start it with mpirun" : ""));
  }
  const bool over_mpi = backend == Backend::hierarchical && mpi::available().empty();
  return backend == Backend::mpi || over_mpi ? Way::mpi : Way::alone;
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

namespace {

/// Set by join_world(). Cleared only when it threw before it joined a world, since a process can
/// join only one.
std::atomic<bool> has_joined{false};

/// Joins the world of `lockstep run`.
std::shared_ptr<Communicator> join_launched(const Environment& environment, host::Options options) {
  const auto world = launched_world();
  if (world == nullptr) {
    throw InvalidArgument(
        concat("init: contradictory environment: ",
               variables_text({"LOCKSTEP_RANK", "LOCKSTEP_WORLD_SIZE", "LOCKSTEP_ARENA_FD"}),
               "; expected all three from `lockstep run`, or none"));
  }
  options.watch = true;
  options.supervised = true;
  return host::create(world, *environment.rank, options);
}

/// Joins a world whose ranks are all on this host and were started by another launcher.
std::shared_ptr<Communicator> join_host_world(const Launcher& launcher, host::Options options) {
  if (const auto why = host::available(); !why.empty()) {
    throw BackendUnavailable(concat("init: backend host does not work here: ", why));
  }
  std::string job = launcher.job;
  if (job.empty()) job = host::job_by_ancestor("PMI_RANK");
  job += concat(" by ", launcher.name());
  options.watch = true;
  const host::LauncherWatch watch(options.launcher, options.launcher_name);
  const auto world = host::rendezvous(job, launcher.rank, launcher.size, options.timeout,
                                      [&] { return watch.ended(); });
  record_errors_in(world, launcher.rank);
  return host::create(world, launcher.rank, options);
}

std::shared_ptr<Communicator> join_tcp(Backend backend, const host::Options& options,
                                       const messages::Options& network,
                                       const tcp::Meeting& meeting,
                                       std::shared_ptr<host::World> host_memory = {}) {
  const auto make = [&](const messages::Options& of_world) {
    return tcp::create(of_world, meeting);
  };
  if (backend == Backend::tcp) return make(network);
  auto world = hierarchical::create({.make_network_world = make,
                                     .network = network,
                                     .host_memory = std::move(host_memory),
                                     .inside = options});
  if (world->backend() == name(Backend::host)) tcp::leave_worlds();
  return world;
}

/// Joins the world of `lockstep run` on several hosts.
std::shared_ptr<Communicator> join_launched_hosts(const Environment& environment, Backend backend,
                                                  const host::Options& options,
                                                  messages::Options network) {
  const auto world = launched_world();
  if (!environment.rank || !environment.world_size || world == nullptr) {
    throw InvalidArgument(
        concat("init: incomplete environment: ",
               variables_text({"LOCKSTEP_MASTER", "LOCKSTEP_RANK", "LOCKSTEP_WORLD_SIZE",
                               "LOCKSTEP_LOCAL_RANK", "LOCKSTEP_LOCAL_SIZE", "LOCKSTEP_ARENA_FD"}),
               "; expected all of them from `lockstep run`"));
  }
  const auto [host, digits] = control::divide_address(environment.master);
  const auto port = parse_number<std::uint16_t>(digits.value_or("")).value_or(std::uint16_t{0});
  if (host.empty() || port == 0) {
    throw InvalidArgument(
        concat("LOCKSTEP_MASTER: got '", environment.master, "', expected HOST:PORT"));
  }
  const auto token = control::parse_token("LOCKSTEP_TOKEN", environment.token);
  // LOCKSTEP_LISTEN_FD can be used once, and other ranks may have ended.
  static std::atomic<bool> connected{false};
  if (connected.exchange(true)) {
    throw InvalidArgument(
        "init: called again after an error while ranks on several hosts joined, expected one call; "
        "start new processes by `lockstep run`");
  }
  auto inside = options;
  inside.supervised = true;
  network.launcher =
      concat(" launcher of rank ", *environment.rank - environment.local_rank.value_or(0));
  return join_tcp(backend, inside, network,
                  {.rank = *environment.rank,
                   .size = *environment.world_size,
                   .port = port,
                   .listening = environment.listen_fd.value_or(-1),
                   .token = token,
                   .find = control::offer_at(host, port, token)},
                  world);
}

/// How the ranks of a launcher that starts no MPI processes meet.
tcp::Meeting meeting_of(const Launcher& launcher, const JoinOptions& options) {
  if (launcher.kind == Launcher::Kind::torchrun) {
    if (options.meet_by_store) return options.meet_by_store(launcher);
    throw BackendUnavailable(
        concat(started_by(launcher),
               " on several hosts, whose store needs LibTorch; link the library with "
               "LibTorch, or start the ranks with `lockstep run`"));
  }
  const auto [host, port] = place_of_rank_0(launcher);
  auto token = control::token_of_file();
  // Steps of one allocation have the same file, and may have the same first node.
  if (launcher.kind == Launcher::Kind::srun) token = control::derived_token(token, launcher.job);
  return {.rank = launcher.rank,
          .size = launcher.size,
          .port = port,
          .token = token,
          .find = control::offer_at(host, port, token)};
}

int online_cores() { return static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)); }

/// The compute threads of each of so many ranks on this host: its share of the cores. 0 leaves the
/// number as it is: OMP_NUM_THREADS sets it, or the rank is bound to no more cores than its share.
int share_of_cores(int ranks) {
  const int share = std::max(1, online_cores() / ranks);
  return variable("OMP_NUM_THREADS") || usable_cores() <= share ? 0 : share;
}

/// Joins the world after the checks of the environment.
std::shared_ptr<Communicator> join_checked(const JoinOptions& options) {
  const auto& environment = Environment::get();
  record_uncaught_errors();
  const auto backend = options.backend.value_or(environment.backend);
  const auto way = way_to_join(environment, backend);
  if (options.keep_freed_memory) keep_freed_memory();
  const auto& launcher = environment.launcher;
  const bool by_launcher = launcher && launcher->size > 1;
  const int threads = options.threads.set_number(
      by_launcher ? share_of_cores(launcher->local_size.value_or(1)) : 0);
  // Before the library creates threads, which inherit the setting of this thread.
  options.threads.flush_denormals(options.flush_denormals.value_or(environment.flush_denormals));
  auto ranks = rank_options("init", options.timeout, threads);
  if (by_launcher && launcher->has_ended()) {
    throw CommError(concat("init rank ", launcher->rank, " of ", launcher->size,
                           ": the launcher of the ranks, ", launcher->name(), ", has ended"));
  }
  if (launcher) {
    ranks.launcher = static_cast<pid_t>(launcher->process());
    ranks.launcher_name = concat(launcher->name(), ", process ", ranks.launcher);
  }
  if (by_launcher) {
    // A rank that is bound to cores sees only those.
    ranks.cores = std::min(ranks.cores * launcher->local_size.value_or(1), online_cores());
  }
  const auto network = network_options(ranks, options);
  switch (way) {
    case Way::launched:
      return join_launched(environment, ranks);
    case Way::launched_hosts:
      return join_launched_hosts(environment, backend, ranks, network);
    case Way::one_host:
      return join_host_world(*launcher, ranks);
    case Way::messages:
      return join_tcp(backend, ranks, network, meeting_of(*launcher, options));
    case Way::mpi: {
      auto over_mpi = network;
      over_mpi.expected_size = launcher ? launcher->size : 0;
      return backend == Backend::mpi ? mpi::create(over_mpi)
                                     : hierarchical::create_over_mpi(over_mpi, ranks);
    }
    case Way::alone:
      break;
  }
  return host::create(host::World::create(1), 0, ranks);
}

}  // namespace

int usable_cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return online_cores();
}

host::Options rank_options(std::string_view operation,
                           const std::optional<std::chrono::milliseconds>& timeout,
                           int threads_per_rank) {
  const auto& environment = Environment::get();
  const auto limit = timeout.value_or(environment.timeout);
  if (limit.count() <= 0) {
    throw_invalid(operation, "got a timeout of ", limit.count(), " ms, expected more than 0");
  }
  return {.timeout = limit,
          .threads_per_rank = threads_per_rank,
          // A rank that is bound to one core sees only that one. Its launcher sets LOCKSTEP_CORES.
          .cores = environment.cores.value_or(usable_cores())};
}

messages::Options network_options(const host::Options& options, const JoinOptions& own) {
  const auto& environment = Environment::get();
  return {.timeout = options.timeout,
          .threads_per_rank = options.threads_per_rank,
          .cores = options.cores,
          .algorithm = own.algorithm.empty()
                           ? messages::parse_algorithm(environment.algorithm, "LOCKSTEP_ALGORITHM:")
                           : messages::parse_algorithm(own.algorithm),
          .progress = own.progress.value_or(environment.progress),
          .transport = environment.transport,
          .host = environment.host,
          .interface = own.interface.empty() ? environment.interface : own.interface,
          .heartbeat = environment.heartbeat};
}

std::shared_ptr<Communicator> join_named(const std::string& name, int rank, int size,
                                         const std::optional<std::chrono::milliseconds>& timeout,
                                         std::size_t heap_bytes, int threads_per_rank) {
  if (name.empty()) throw_invalid("join", "got an empty name, expected that of the world");
  if (size < 1 || size > host::max_ranks) {
    throw_invalid("join", "got a world of ", size, " ranks, expected 1 to ", host::max_ranks);
  }
  if (rank < 0 || rank >= size) {
    throw_invalid("join", "got rank ", rank, ", expected 0 to ", size - 1);
  }
  if (const auto why = host::available(); !why.empty()) {
    throw BackendUnavailable(concat("join: shared memory does not work here: ", why),
                             {.operation = "join"});
  }
  return as_operation("join", [&] {
    auto options = rank_options("join", timeout, threads_per_rank);
    options.map_heaps = false;
    options.watch = true;
    const auto world = host::rendezvous(concat("name ", name), rank, size, options.timeout, {},
                                        {.call = "join", .heap_bytes = heap_bytes});
    return host::create(world, rank, options);
  });
}

std::shared_ptr<Communicator> join_world(const JoinOptions& options) {
  if (has_joined.exchange(true)) {
    throw_invalid("init",
                  "called a second time in this process; keep the Group that the first call "
                  "returned, or start new processes for a new world");
  }
  const bool flushed_before = flushes_denormals();
  try {
    const auto world = join_checked(options);
    const auto& launcher = Environment::get().launcher;
    if (launcher && (!launcher->local_size || launcher->local_size_is_guess)) {
      options.threads.set_number(share_of_cores(hierarchical::HostTopology::of(*world).local_size));
    }
    return world;
  } catch (Error& error) {
    error.set_operation("init");
    const bool refused = error.kind() == ErrorKind::invalid_argument ||
                         error.kind() == ErrorKind::backend_unavailable;
    if (refused) {
      // No world was joined, so the caller may call init() again.
      has_joined = false;
      if (flushes_denormals() != flushed_before) options.threads.flush_denormals(flushed_before);
    }
    throw;
  }
}

}  // namespace lockstep::detail
