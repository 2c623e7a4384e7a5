#include "join/join_world.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>
#include <tuple>

#include "comm/control/address_source.h"
#include "comm/control/token.h"
#include "comm/hierarchical/hierarchical.h"
#include "comm/host/peer_watch.h"
#include "comm/host/world/rendezvous.h"
#include "comm/mpi/mpi.h"
#include "comm/tcp/tcp.h"
#include "core/environment.h"
#include "core/operation_error.h"
#include "core/system/memory.h"
#include "core/text.h"
#include "join/record_errors.h"
#include "lockstep/denormals.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {
namespace {

/// Set by join_world(). Cleared only when it threw before it joined a world, since a process can
/// join only one.
std::atomic<bool> joined{false};

std::string variable_text(const char* name, const std::optional<int>& value) {
  return concat(name, value ? concat("=", *value) : " unset");
}

std::string variable_text(const char* name) {
  const auto value = variable(name);
  return concat(name, value ? concat("=", *value) : " unset");
}

/// Joins a world in shared memory, and records uncaught errors of this process there.
std::shared_ptr<Communicator> join(const std::shared_ptr<host::World>& world, int rank,
                                   host::Options options) {
  options.keep_world = true;
  record_errors_in(world, rank);
  return host::create(world, rank, options);
}

/// Joins the world of `lockstep run`.
std::shared_ptr<Communicator> join_launched(const Environment& environment, host::Options options) {
  const auto& [rank, size, fd] =
      std::tie(environment.rank, environment.world_size, environment.arena_fd);
  if (!rank || !size || !fd || *rank >= *size) {
    throw InvalidArgument(concat(
        "init: contradictory environment: ", variable_text("LOCKSTEP_RANK", rank), ", ",
        variable_text("LOCKSTEP_WORLD_SIZE", size), ", ", variable_text("LOCKSTEP_ARENA_FD", fd),
        "; expected all three from `lockstep run`, or none"));
  }
  options.watch = true;
  options.supervised = true;
  return join(host::World::attach(*fd, *size), *rank, options);
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
  return join(world, launcher.rank, options);
}

std::shared_ptr<Communicator> join_mpi(Backend backend, const host::Options& options,
                                       const messages::Options& between_hosts, int expected_size) {
  const mpi::Options network{between_hosts, expected_size};
  if (backend == Backend::mpi) return mpi::create(network);
  return hierarchical::create_over_mpi(network, options);
}

std::shared_ptr<Communicator> join_tcp(Backend backend, const host::Options& options,
                                       const messages::Options& between_hosts,
                                       const tcp::Meeting& meeting,
                                       std::shared_ptr<host::World> world_of_host = {}) {
  const auto make = [&](const messages::Options& flat) { return tcp::create(flat, meeting); };
  if (backend == Backend::tcp) return make(between_hosts);
  auto world = hierarchical::create({.make_flat = make,
                                     .between_hosts = between_hosts,
                                     .by_thread = between_hosts.progress != ProgressMode::wait,
                                     .world_of_host = std::move(world_of_host),
                                     .inside = options});
  if (world->backend() == name(Backend::host)) tcp::leave_worlds();
  return world;
}

/// Throws: InvalidArgument naming the variable.
std::pair<std::string, std::uint16_t> host_and_port(const char* name, const std::string& text) {
  const auto [host, digits] = control::divide_address(text);
  const auto port = parse_number<std::uint16_t>(digits.value_or("")).value_or(std::uint16_t{0});
  if (host.empty() || port == 0)
    throw InvalidArgument(concat(name, ": got '", text, "', expected HOST:PORT"));
  return {host, port};
}

/// Joins the world of `lockstep run` on several hosts.
std::shared_ptr<Communicator> join_launched_hosts(const Environment& environment, Backend backend,
                                                  const host::Options& options,
                                                  const JoinOptions& own) {
  const auto& [local_rank, local_size, fd] =
      std::tie(environment.local_rank, environment.local_size, environment.arena_fd);
  if (!environment.rank || !environment.world_size || !local_rank || !local_size || !fd) {
    throw InvalidArgument(concat("init: incomplete environment: ", variable_text("LOCKSTEP_MASTER"),
                                 ", ", variable_text("LOCKSTEP_RANK", environment.rank), ", ",
                                 variable_text("LOCKSTEP_WORLD_SIZE", environment.world_size), ", ",
                                 variable_text("LOCKSTEP_LOCAL_RANK", local_rank), ", ",
                                 variable_text("LOCKSTEP_LOCAL_SIZE", local_size), ", ",
                                 variable_text("LOCKSTEP_ARENA_FD", fd),
                                 "; expected all of them from `lockstep run`"));
  }
  const auto [host, port] = host_and_port("LOCKSTEP_MASTER", environment.master);
  const auto token = control::parse_token("LOCKSTEP_TOKEN", environment.token);
  const auto world = host::World::attach(*fd, *local_size);
  record_errors_in(world, *local_rank);
  auto inside = options;
  inside.supervised = true;
  inside.keep_world = true;
  return join_tcp(backend, inside, network_options(options, own),
                  {.rank = *environment.rank,
                   .size = *environment.world_size,
                   .port = port,
                   .listening = environment.listen_fd.value_or(-1),
                   .token = token,
                   .find = control::offer_at(host, port, token)},
                  world);
}

/// How the ranks of a launcher that starts no MPI processes meet.
tcp::Meeting meeting_of(const Launcher& launcher, const JoinOptions& options,
                        const std::string& prefix) {
  if (launcher.kind == Launcher::Kind::torchrun) {
    if (options.meet_by_store) return options.meet_by_store(launcher);
    throw BackendUnavailable(
        concat(prefix,
               " on several hosts, whose store needs LibTorch; link the library with "
               "LibTorch, or start the ranks with `lockstep run`"));
  }
  const auto host = variable("MASTER_ADDR");
  const auto port = integer_variable("MASTER_PORT", 1);
  if (!host || !port || *port > 65535) {
    throw InvalidArgument(concat(prefix, ", with backend tcp: got ", variable_text("MASTER_ADDR"),
                                 ", ", variable_text("MASTER_PORT"),
                                 "; expected the host of rank 0 and a port that is free there"));
  }
  const auto token = control::token_of_file();
  return {.rank = launcher.rank,
          .size = launcher.size,
          .port = static_cast<std::uint16_t>(*port),
          .token = token,
          .find = control::offer_at(std::string(*host), static_cast<std::uint16_t>(*port), token)};
}

/// Joins a world of several ranks that another launcher has started.
std::shared_ptr<Communicator> join_by_launcher(const Launcher& launcher, Backend backend,
                                               const host::Options& options,
                                               const JoinOptions& own) {
  const auto prefix = concat("init: started by ", launcher.name(), " as rank ", launcher.rank,
                             " of ", launcher.size);
  const bool on_host = backend == Backend::automatic || backend == Backend::host;
  if (launcher.one_host() && on_host) return join_host_world(launcher, options);
  if (backend == Backend::host) {
    throw InvalidArgument(concat(prefix,
                                 ", not all on this host, which backend host does not support; use "
                                 "backend hierarchical, tcp or mpi"));
  }
  const auto network = network_options(options, own);
  if (backend == Backend::tcp || !launcher.starts_mpi()) {
    if (backend != Backend::mpi)
      return join_tcp(backend, options, network, meeting_of(launcher, own, prefix));
    throw BackendUnavailable(concat(prefix,
                                    ", which does not start MPI processes; use backend "
                                    "hierarchical or tcp, or start them with mpirun"));
  }
  if (const auto why = mpi::available(); !why.empty()) {
    throw BackendUnavailable(concat(prefix, "; ", why));
  }
  return join_mpi(backend, options, network, launcher.size);
}

/// The number of compute threads that a rank of this launcher sets: its share of the cores. 0 if
/// OMP_NUM_THREADS or a restricted set of cores determines it.
int share_of_cores(const Launcher& launcher) {
  const auto online = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  const bool bound = usable_cores() < online;
  if (bound || std::getenv("OMP_NUM_THREADS") != nullptr) return 0;
  return std::max(1, online / launcher.local_size.value_or(1));
}

/// Joins the world after the checks of the environment.
std::shared_ptr<Communicator> join_checked(const JoinOptions& options) {
  const auto& environment = Environment::get();
  record_uncaught_errors();
  const bool launched = environment.rank || environment.world_size || environment.arena_fd;
  const auto backend = options.backend.value_or(environment.backend);
  if (!environment.launcher_problem.empty()) throw InvalidArgument(environment.launcher_problem);
  if (options.keep_freed_memory) keep_freed_memory();
  const auto& launcher = environment.launcher;
  const bool by_launcher = launcher && launcher->size > 1;
  const int threads = options.threads.set_number(by_launcher ? share_of_cores(*launcher) : 0);
  // Before the library creates threads, which inherit the setting of this thread.
  options.threads.flush_denormals(flush_denormals_setting(options.flush_denormals));
  auto ranks = rank_options(options.timeout, threads);
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
    ranks.cores = std::min(ranks.cores * launcher->local_size.value_or(1),
                           static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
    return join_by_launcher(*launcher, backend, ranks, options);
  }
  if (!environment.master.empty()) return join_launched_hosts(environment, backend, ranks, options);
  if (launched && backend != Backend::automatic && backend != Backend::host) {
    throw InvalidArgument(concat(
        "init: started by lockstep run, which ",
        backend == Backend::tcp ? "uses shared memory on one host" : "does not start MPI processes",
        ", with backend ", name(backend), "; use backend auto, or start it with mpirun"));
  }
  if (launched) return join_launched(environment, ranks);
  if (backend == Backend::mpi || backend == Backend::hierarchical) {
    return join_mpi(backend, ranks, network_options(ranks, options), launcher ? 1 : 0);
  }
  return host::create(host::World::create(1), 0, ranks);
}

}  // namespace

bool flush_denormals_setting(const std::optional<bool>& option) {
  return option.value_or(Environment::get().flush_denormals);
}

int usable_cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
}

host::Options rank_options(const std::optional<std::chrono::milliseconds>& timeout,
                           int threads_per_rank) {
  const auto& environment = Environment::get();
  const auto limit = timeout.value_or(environment.timeout);
  if (limit.count() <= 0) {
    throw_invalid("init", "got a timeout of ", limit.count(), " ms, expected more than 0");
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
          .algorithm = messages::parse_algorithm(own.algorithm.empty() ? environment.algorithm
                                                                       : own.algorithm),
          .progress = own.progress.value_or(environment.progress),
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
  try {
    auto options = rank_options(timeout, threads_per_rank);
    options.map_heaps = false;
    options.watch = true;
    const auto world = host::rendezvous(concat("name ", name), rank, size, options.timeout, {},
                                        {.call = "join", .heap_bytes = heap_bytes});
    return host::create(world, rank, options);
  } catch (Error& error) {
    error.set_operation("join");
    throw;
  }
}

std::shared_ptr<Communicator> join_world(const JoinOptions& options) {
  if (joined.exchange(true)) {
    throw InvalidArgument(
        "init: called a second time in this process; keep the Group that the first call returned, "
        "or start new processes for a new world",
        {.operation = "init"});
  }
  const bool flushed_before = flushes_denormals();
  try {
    return join_checked(options);
  } catch (Error& error) {
    error.set_operation("init");
    const bool refused = error.kind() == ErrorKind::invalid_argument ||
                         error.kind() == ErrorKind::backend_unavailable;
    if (refused) {
      // No world was joined, so the caller may call init() again.
      joined = false;
      if (flushes_denormals() != flushed_before) options.threads.flush_denormals(flushed_before);
    }
    throw;
  }
}

}  // namespace lockstep::detail
