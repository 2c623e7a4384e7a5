#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/core/launcher.h"
#include "lockstep/core/progress_mode.h"

namespace lockstep {

/// What carries the collectives of a world.
enum class Backend {
  automatic,    ///< host while all ranks are on one, else hierarchical
  host,         ///< one host's memory
  mpi,          ///< MPI alone, also between ranks of one host
  hierarchical  ///< memory inside each host, MPI between them
};

/// "auto", "host", "mpi" or "hierarchical".
std::string_view name(Backend backend);

/// The backend of a name. Throws: InvalidArgument listing the valid names.
Backend parse_backend(std::string_view text);

/// Whether its ranks must be processes that MPI knows.
bool needs_mpi(Backend backend);

/// Every environment variable that the library reads, parsed once and never changed after.
/// `lockstep run` sets the first five for its ranks; the rest are the user's.
struct Environment {
  std::optional<int> rank;        ///< LOCKSTEP_RANK: this process's rank, 0 … world_size-1
  std::optional<int> world_size;  ///< LOCKSTEP_WORLD_SIZE: number of ranks
  std::optional<int> arena_fd;    ///< LOCKSTEP_ARENA_FD: inherited descriptor of the world's memory
  std::optional<int> cores;       ///< LOCKSTEP_CORES: cores that the world's ranks share
  int restart_count = 0;          ///< LOCKSTEP_RESTART_COUNT: how often the world was started again
  std::chrono::milliseconds timeout;  ///< LOCKSTEP_TIMEOUT: seconds a wait may last, default 600
  std::string log_level;              ///< LOCKSTEP_LOG: debug, info, warn or error; silent if unset
  Backend backend = Backend::automatic;  ///< LOCKSTEP_BACKEND: auto, host, mpi or hierarchical
  std::string algorithm;  ///< LOCKSTEP_ALGORITHM: auto, direct or ring, for all_reduce over MPI
  ProgressMode progress =
      ProgressMode::automatic;  ///< LOCKSTEP_PROGRESS: auto, thread or wait, over MPI
  std::string
      host;  ///< LOCKSTEP_HOST: what this host is known by; ranks that say the same share memory
  std::string interface;  ///< LOCKSTEP_INTERFACE: the network interface by which hosts watch one
                          ///< another; empty leaves that to the routes
  std::chrono::milliseconds
      heartbeat;  ///< LOCKSTEP_HEARTBEAT: seconds of silence after which a host is given up
  std::string error_file;  ///< TORCHELASTIC_ERROR_FILE: where torchrun looks for why a rank ended
  std::optional<Launcher> launcher;  ///< another launcher than `lockstep run`, by its variables
  std::string launcher_problem;      ///< why those cannot be used, if so

  /// The process's environment as it was at the first call.
  /// Throws: InvalidArgument naming the variable, what it held and what was expected.
  static const Environment& get();

  /// The same, read anew. For tests and launchers.
  static Environment read();
};

}  // namespace lockstep
