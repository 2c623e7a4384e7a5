#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "comm/communicator.h"
#include "comm/host/host.h"
#include "comm/messages/options.h"
#include "comm/tcp/tcp.h"
#include "core/environment.h"
#include "core/launcher.h"
#include "lockstep/denormals.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2::detail {

/// How a process joins its world.
enum class Way {
  alone,           ///< no other rank
  launched,        ///< `lockstep run` on one host: shared memory
  launched_hosts,  ///< `lockstep run` on several hosts: over TCP or UCX
  one_host,        ///< another launcher, whose ranks are all on this host: shared memory
  messages,        ///< another launcher: over TCP or UCX
  mpi
};

/// The way of a process with this environment.
/// Throws: as init(), if the environment is incomplete or the backend does not suit its launcher.
Way way_to_join(const Environment& environment, Backend backend);

/// The host and port at which rank 0 of Way::messages listens, or at which torchrun has its store.
/// Throws: InvalidArgument naming the variables if they are not known, and for srun without a
/// secret.
std::pair<std::string, std::uint16_t> place_of_rank_0(const Launcher& launcher);

/// The threads that compute for a rank. A library of tensors has its own, and sets both functions.
struct ComputeThreads {
  /// Sets the number of compute threads, if it is more than 0, and returns the number.
  std::function<int(int threads)> set_number = [](int) { return 1; };
  /// Flushes or keeps denormals in the calling thread and in the compute threads.
  std::function<void(bool flush)> flush_denormals = [](bool flush) {
    lockstep::flush_denormals(flush);
  };
};

/// As InitOptions of init().
struct JoinOptions {
  std::optional<Backend> backend = {};
  std::optional<std::chrono::milliseconds> timeout = {};
  bool keep_freed_memory = false;
  std::optional<bool> flush_denormals = {};
  ComputeThreads threads = {};
  std::optional<ProgressMode> progress = {};  ///< over a network; default LOCKSTEP_PROGRESS
  std::string algorithm = {};                 ///< over a network; default LOCKSTEP_ALGORITHM
  std::string interface = {};                 ///< between hosts; default LOCKSTEP_INTERFACE
  /// How the ranks of torchrun on several hosts meet, for a library that knows its store.
  std::function<tcp::Meeting(const Launcher&)> meet_by_store = {};
};

/// Joins the world that this process belongs to, as init() describes.
/// Ranks: all, once in each process.
/// Throws: as init(), with the operation "init".
std::shared_ptr<Communicator> join_world(const JoinOptions& options);

/// Joins the world of this name on this host, as join() of init.h describes.
/// Ranks: all of that world, each once. Any number of worlds in a process.
/// Throws: as join(), with the operation "join".
std::shared_ptr<Communicator> join_named(const std::string& name, int rank, int size,
                                         const std::optional<std::chrono::milliseconds>& timeout,
                                         std::size_t heap_bytes, int threads_per_rank);

/// The options of a rank in shared memory. timeout: default LOCKSTEP_TIMEOUT.
/// Throws: InvalidArgument of this operation for a timeout that is not positive.
host::Options rank_options(std::string_view operation,
                           const std::optional<std::chrono::milliseconds>& timeout,
                           int threads_per_rank);

/// The options of a rank in a world over a network.
messages::Options network_options(const host::Options& options, const JoinOptions& own);

/// Cores that this process may use.
int usable_cores();

}  // namespace lockstep::detail
