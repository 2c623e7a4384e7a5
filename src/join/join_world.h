#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/communicator.h"
#include "comm/host/host.h"
#include "comm/messages/options.h"
#include "comm/tcp/tcp.h"
#include "core/environment.h"
#include "lockstep/denormals.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2::detail {

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

/// Whether ranks flush denormals: the caller's option, else LOCKSTEP_FLUSH_DENORMALS.
bool flush_denormals_setting(const std::optional<bool>& option);

/// The options of a rank in shared memory. timeout: default LOCKSTEP_TIMEOUT.
/// Throws: InvalidArgument for a timeout that is not positive.
host::Options rank_options(const std::optional<std::chrono::milliseconds>& timeout,
                           int threads_per_rank);

/// The options of a rank in a world over a network.
messages::Options network_options(const host::Options& options, const JoinOptions& own);

/// Cores that this process may use.
int usable_cores();

}  // namespace lockstep::detail
