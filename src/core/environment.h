#pragma once

#include <charconv>
#include <chrono>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "core/launcher.h"
#include "core/system/denormals_guard.h"
#include "lockstep/log_sink.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2::detail {

/// The value of the environment variable; nullopt if it is unset or empty.
std::optional<std::string_view> variable(const char* name);

/// Parses the whole text as a number; nullopt if it is not one.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// The integer in the variable; nullopt if it is unset.
/// Throws: InvalidArgument if it is not an integer of at least `least`.
std::optional<int> integer_variable(const char* name, int least);

/// Whether the variable's value is a secret of the job, which no output may contain.
bool is_secret(std::string_view name);

/// "NAME=value, OTHER unset", for error texts.
std::string variables_text(std::initializer_list<const char*> names);

}  // namespace lockstep::detail

namespace lockstep::inline v0_2 {

/// How operations over MPI or TCP advance between a rank's calls.
enum class ProgressMode {
  automatic,  ///< a progress thread if MPI allows it, else wait
  thread,     ///< a progress thread; an error if MPI does not allow it
  wait        ///< no thread: a rank advances them when it begins or waits for one
};

/// "auto", "thread" or "wait".
std::string_view name(ProgressMode progress);

/// The library that carries messages between ranks without MPI.
enum class TransportKind {
  automatic,  ///< UCX if all ranks can use it and their hosts have InfiniBand or RoCE, else TCP
  tcp,
  ucx  ///< an error if some rank cannot use it
};

/// All environment variables that the library reads, parsed once. `lockstep run` sets those up to
/// restart_count for its ranks; the user sets the others.
struct Environment {
  std::optional<int> rank;        ///< LOCKSTEP_RANK: this process's rank, 0 … world_size-1
  std::optional<int> world_size;  ///< LOCKSTEP_WORLD_SIZE: number of ranks
  std::optional<int> arena_fd;    ///< LOCKSTEP_ARENA_FD: inherited descriptor of the world's memory
  std::optional<int> cores;       ///< LOCKSTEP_CORES: cores that the world's ranks share
  /// LOCKSTEP_MASTER, of a world on several hosts: HOST:PORT at which rank 0 listens. Then
  /// LOCKSTEP_ARENA_FD is the memory of the ranks of this host.
  std::string master;
  std::string token;  ///< LOCKSTEP_TOKEN: the secret of that world, in hexadecimal digits
  std::optional<int> listen_fd;   ///< LOCKSTEP_LISTEN_FD: rank 0's inherited listening socket
  std::optional<int> local_rank;  ///< LOCKSTEP_LOCAL_RANK: rank on this host
  std::optional<int> local_size;  ///< LOCKSTEP_LOCAL_SIZE: number of ranks on this host
  std::string run_id;             ///< LOCKSTEP_RUN_ID: name of the job, the same for all attempts
  int restart_count = 0;          ///< LOCKSTEP_RESTART_COUNT: number of restarts of the world
  std::chrono::milliseconds timeout;  ///< LOCKSTEP_TIMEOUT: longest wait in seconds, default 600
  /// LOCKSTEP_FLUSH_DENORMALS: 0 or 1; default 1 where supported
  bool flush_denormals = detail::can_flush_denormals;
  /// LOCKSTEP_STALL_WARNING: time of a wait for others after which a rank reports who is missing,
  /// in seconds; default 30, 0 for never.
  std::chrono::milliseconds stall_warning;
  bool flight_recorder = true;        ///< LOCKSTEP_FLIGHT_RECORDER: 0 or 1
  bool crash_handler = true;          ///< LOCKSTEP_CRASH_HANDLER: 0 or 1
  std::string trace_folder;           ///< LOCKSTEP_TRACE: folder of flight records after a failure
  std::optional<LogLevel> log_level;  ///< LOCKSTEP_LOG: debug, info, warn or error; silent if unset
  Backend backend = Backend::automatic;  ///< LOCKSTEP_BACKEND: a name of Backend
  /// LOCKSTEP_ALGORITHM: auto, direct or ring, for all_reduce over a network.
  std::string algorithm;
  /// LOCKSTEP_PROGRESS: auto, thread or wait, for operations over a network.
  ProgressMode progress = ProgressMode::automatic;
  /// LOCKSTEP_TRANSPORT: auto, tcp or ucx, for messages between ranks without MPI.
  TransportKind transport = TransportKind::automatic;
  /// LOCKSTEP_HOST: id of this host; ranks with the same id share memory.
  std::string host;
  /// LOCKSTEP_INTERFACE: network interface of the connections between hosts; empty: the
  /// system's routes select it.
  std::string interface;
  /// LOCKSTEP_HEARTBEAT: longest time in seconds without a heartbeat from a host, default 15.
  std::chrono::milliseconds heartbeat;
  std::string error_file;  ///< TORCHELASTIC_ERROR_FILE: file for torchrun with the rank's error
  std::optional<Launcher> launcher;  ///< a launcher other than `lockstep run`
  std::string launcher_problem;      ///< why its variables cannot be used, or empty
  /// LOCKSTEP_BUCKET_MIB: default size of gradient buckets in MiB.
  std::optional<int> bucket_mib;
  bool share_memory = false;  ///< LOCKSTEP_SHARE_MEMORY: 0 or 1; default of that option

  /// The environment at the time of the first call.
  /// Throws: InvalidArgument naming the variable, its value and the expected values.
  static const Environment& get();

  /// Reads the environment again. For tests and launchers.
  static Environment read();
};

}  // namespace lockstep
