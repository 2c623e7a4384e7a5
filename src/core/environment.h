#pragma once

#include <charconv>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "core/denormals_guard.h"
#include "core/launcher.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2::detail {

/// The value of the environment variable; an empty one counts as unset.
std::optional<std::string_view> variable(const char* name);

/// The number that all of the text is, if it is one.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// The variable's whole number. Throws: InvalidArgument when it holds anything else or less.
std::optional<int> integer_variable(const char* name, int least);

}  // namespace lockstep::detail

namespace lockstep::inline v0_2 {

/// How operations over MPI advance between a rank's calls.
enum class ProgressMode {
  automatic,  ///< a thread, where MPI allows one
  thread,     ///< a thread, or an error
  wait        ///< no thread: a rank advances them when it begins or waits for one
};

/// "auto", "thread" or "wait".
std::string_view name(ProgressMode progress);

/// The progress of a name. Throws: InvalidArgument listing the valid names.
ProgressMode parse_progress_mode(std::string_view text);

/// Whether its ranks must be processes that MPI knows.
bool needs_mpi(Backend backend);

/// Every environment variable that the library reads, parsed once and never changed after.
/// `lockstep run` sets the first seven for its ranks; the rest are the user's.
struct Environment {
  std::optional<int> rank;        ///< LOCKSTEP_RANK: this process's rank, 0 … world_size-1
  std::optional<int> world_size;  ///< LOCKSTEP_WORLD_SIZE: number of ranks
  std::optional<int> arena_fd;    ///< LOCKSTEP_ARENA_FD: inherited descriptor of the world's memory
  std::optional<int> error_fd;    ///< LOCKSTEP_ERROR_FD: that of the file for the ranks' errors
  std::optional<int> cores;       ///< LOCKSTEP_CORES: cores that the world's ranks share
  std::string run_id;             ///< LOCKSTEP_RUN_ID: the job, whatever its attempts
  int restart_count = 0;          ///< LOCKSTEP_RESTART_COUNT: how often the world was started again
  std::chrono::milliseconds timeout;  ///< LOCKSTEP_TIMEOUT: seconds a wait may last, default 600
  /// LOCKSTEP_FLUSH_DENORMALS: 0 or 1; where it can be done, 1 is the default
  bool flush_denormals = detail::can_flush_denormals;
  std::string log_level;  ///< LOCKSTEP_LOG: debug, info, warn or error; silent if unset
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
