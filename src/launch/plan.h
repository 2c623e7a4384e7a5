#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/topology.h"

namespace lockstep::inline v0_2::launch {

/// Whether each rank is kept to its own cores.
enum class Bind { none, cores };

/// A user's options for the launcher.
struct Options {
  int ranks = 0;        ///< 1 … host::max_ranks
  std::string program;  ///< a path, or a name that is looked up in PATH
  std::vector<std::string> arguments;
  Bind bind = Bind::cores;
  bool keep_freed_memory = true;  ///< glibc keeps freed pages instead of giving them back each step
  std::optional<bool> flush_denormals;  ///< for LOCKSTEP_FLUSH_DENORMALS; default: the user's, or 1
  std::optional<double> timeout;        ///< seconds a rank waits for others, for LOCKSTEP_TIMEOUT
  std::string interface;  ///< of the network, for LOCKSTEP_INTERFACE; empty leaves it alone
  std::chrono::milliseconds grace{500};  ///< between SIGTERM and SIGKILL after a failure
  /// How long a rank may go on after it left the world or all others ended; else it is a failure.
  std::optional<std::chrono::duration<double>> linger;
  std::chrono::milliseconds restart_delay{
      1000};             ///< before the first restart; Backoff has the rest
  int max_restarts = 0;  ///< how often the world is started again after a failure
  bool quiet = false;    ///< only rank 0 is heard
  std::filesystem::path
      log_directory;  ///< rank-0.out, rank-0.err, … are written there; none if empty
};

using Variables = std::vector<std::pair<std::string, std::string>>;

/// One rank as it will be started.
struct RankPlan {
  std::vector<int> cpus;  ///< where it may run; empty for anywhere
  Variables variables;    ///< set over the launcher's own environment
};

/// All that is decided before anything is started.
struct Plan {
  Options options;
  std::string run_id;             ///< of this job, whatever its attempts
  std::filesystem::path program;  ///< the file that will be executed
  Topology topology;
  int threads = 1;  ///< cores a rank: its OMP_NUM_THREADS unless the user set that
  std::vector<RankPlan> ranks;
  Variables inherited;  ///< the launcher's own environment
};

/// The numbers of the descriptors that ranks inherit, of the world's memory and of the file for
/// their errors: above those that shell scripts use.
inline constexpr int arena_descriptor = 200;
inline constexpr int error_descriptor = 201;

/// Checks the options, finds the program and divides the cores.
/// Throws: InvalidArgument naming the option, or the program and why it cannot be executed.
Plan make_plan(const Options& options, const Topology& topology, const Variables& inherited);

/// The same for this process: its cores, its environment.
Plan make_plan(const Options& options);

/// The plan of one attempt, after so many restarts of the world. The ranks' environment contains
/// that number. Where there may be several attempts, each has log files of its own.
Plan attempt_of(const Plan& plan, int restarts);

/// The cores of each rank: slices of the same number of cores in node order. No slice crosses a
/// NUMA node when there are at least as many ranks as nodes. More ranks than cores get one logical
/// CPU each. More ranks than logical CPUs, or Bind::none, get no cores of their own.
struct Division {
  int threads = 1;
  std::vector<std::vector<int>> cpus;  ///< of each rank; empty when ranks are not bound
};
Division divide_cores(const Topology& topology, int ranks, Bind bind);

/// The plan as two aligned tables: the configuration, and what each rank gets.
std::string describe(const Plan& plan);

/// This process's environment.
Variables inherited_environment();

}  // namespace lockstep::launch
