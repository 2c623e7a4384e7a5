#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/system/topology.h"
#include "launch/gpus.h"

namespace lockstep::inline v0_2::launch {

/// Whether each rank is bound to its own cores.
enum class Bind { none, cores };

/// The place of this launcher among the nodes of a job: the launchers of several hosts.
struct NodePlace {
  int count = 1;            ///< number of nodes; 1: all ranks are on this host
  int number = 0;           ///< this node's, from 0
  int least = 0;            ///< an attempt begins with so many nodes if no more come; 0: with all
  std::string host = {};    ///< name or address of node 0
  std::uint16_t port = 0;   ///< on which node 0 listens
  std::string source = {};  ///< the variables that have given the place, for texts
  std::string token = {};   ///< of the nodes, in hexadecimal; empty: as LOCKSTEP_TOKEN_FILE
  bool remote = false;      ///< started by RemoteNodes, whose launcher reports the results
  bool shows_host = false;  ///< all nodes write to one output, so that ranks' lines name hosts
};

/// The options of the launcher.
struct Options {
  int ranks = 0;        ///< 1 … host::max_ranks; not read with rank_per_gpu
  std::string program;  ///< a path, or a name that is looked up in PATH
  std::vector<std::string> arguments;
  Bind bind = Bind::cores;
  bool keep_freed_memory =
      true;  ///< glibc keeps freed pages; false: it returns blocks of 1 MiB and more to the kernel
  bool huge_pages = true;  ///< glibc asks for transparent huge pages for the heap
  std::optional<bool>
      flush_denormals;  ///< for LOCKSTEP_FLUSH_DENORMALS; default: the inherited value, else 1
  std::optional<double> timeout;        ///< longest wait in seconds, for LOCKSTEP_TIMEOUT
  std::optional<double> stall_warning;  ///< in seconds, 0 for never; for LOCKSTEP_STALL_WARNING
  std::string interface;  ///< network interface, for LOCKSTEP_INTERFACE; empty: not set
  std::chrono::milliseconds grace{500};  ///< between SIGTERM and SIGKILL after a failure
  bool forward_signals = true;           ///< SIGUSR1 and SIGUSR2 are sent on to the ranks
  /// Longest time in seconds that a rank may run after it left the world or all others ended; after
  /// that, the job fails. None: no limit.
  std::optional<double> linger;
  std::chrono::milliseconds restart_delay{
      1000};                        ///< before the first restart; later delays: Backoff
  int max_restarts = 0;             ///< most restarts of the world after a failure
  bool quiet = false;               ///< display the output of rank 0 only
  bool reads_stdin = true;          ///< rank 0 reads the launcher's stdin
  bool rank_per_gpu = false;        ///< one rank for each GPU
  std::optional<std::string> gpus;  ///< entries for CUDA_VISIBLE_DEVICES, as "0,1"
  /// More ranks than GPUs are allowed, for LOCKSTEP_SHARE_GPUS: "1" for ranks that exchange through
  /// host memory, "nccl" for NCCL; empty: not set.
  std::string share_gpus;
  std::string device;  ///< auto, cpu or cuda, for LOCKSTEP_DEVICE; empty: not set
  std::filesystem::path
      log_directory;  ///< folder of rank-0.out, rank-0.err, …; empty: no log files
  NodePlace node;
  bool verbose = false;  ///< report this node's ranks when all nodes have joined

  /// Whether the launcher looks for GPUs. `device` alone is only passed on to the ranks.
  bool asks_for_gpus() const { return rank_per_gpu || gpus || !share_gpus.empty(); }
};

using Variables = std::vector<std::pair<std::string, std::string>>;

/// The value of the named variable, or nullptr. It belongs to variables.
const std::string* find_variable(const Variables& variables, std::string_view name);

/// The same; empty if there is none.
std::string value_of(const Variables& variables, std::string_view name);

/// The plan of one rank.
struct RankPlan {
  std::vector<int> cpus;  ///< CPUs that it is bound to; empty: not bound
  Variables variables;    ///< set in addition to the inherited environment
};

/// The GPUs of the ranks: rank r uses gpus[r], or gpus[r mod gpus.size()] if they are shared.
struct RankGpus {
  std::vector<Gpu> gpus;  ///< empty: the options ask for none
  bool shared = false;
  std::string note;     ///< GpuList::problem of these GPUs
  Variables variables;  ///< for every rank
};

/// All decisions that are made before the ranks are started.
struct Plan {
  Options options;
  std::string run_id;             ///< name of this job, the same for all attempts
  std::filesystem::path program;  ///< the file that will be executed
  Topology topology;
  int threads = 1;  ///< cores per rank: OMP_NUM_THREADS, unless the user has set it
  RankGpus gpus = {};
  std::vector<RankPlan> ranks;
  Variables inherited;  ///< the launcher's own environment
  int restarts = 0;     ///< of the world, before this attempt
  int first_rank = 0;   ///< world rank of this node's first rank
  int world_size = 0;   ///< number of ranks of all nodes
  /// With several nodes: the address of rank 0 and the secret of the world. start_attempt() sets
  /// them.
  std::string master = {}, token = {};
  bool listens = false;  ///< rank 0 is on this node, and inherits the socket on which it listens
};

/// Sets the variables of every rank, from the rest of the plan.
void set_variables(Plan& plan);

/// The descriptors that ranks inherit: the world's memory and, with several nodes, the socket on
/// which rank 0 listens. The numbers are above those that shell scripts use.
inline constexpr int arena_descriptor = 200;
inline constexpr int listen_descriptor = 201;

/// Checks the options, finds the program and the GPUs, and divides the cores.
/// Throws: InvalidArgument naming the option, or the program and why it cannot be executed.
Plan make_plan(const Options& options, const Topology& topology, const Variables& inherited);

/// The same with the cores and the environment of this process.
Plan make_plan(const Options& options);

/// The plan of one attempt, after this number of restarts, with the ranks' variables. If restarts
/// are allowed, each attempt has its own log folder.
Plan attempt_of(const Plan& plan, int restarts);

/// The cores of each rank: slices of equal numbers of cores, in the order of NUMA nodes. If there
/// are at least as many ranks as nodes, no slice crosses a node. If there are more ranks than
/// cores, each gets one logical CPU. If there are more ranks than logical CPUs, or with Bind::none,
/// ranks are not bound.
struct Division {
  int threads = 1;
  std::vector<std::vector<int>> cpus;  ///< for each rank; empty if ranks are not bound
};
Division divide_cores(const Topology& topology, int ranks, Bind bind);

/// Formats the plan as tables: program and places of the ranks, and their environment.
std::string describe(const Plan& plan);

/// This process's environment.
Variables inherited_environment();

/// Decides which GPUs the ranks use. Looks for GPUs only if the options ask for them.
/// Throws: InvalidArgument naming the option, what was found and what to do.
RankGpus choose_gpus(const Options& options, const Variables& inherited);

/// Checks that there are enough GPUs for this number of ranks.
/// Throws: InvalidArgument naming --share-gpus.
void check_ranks(const RankGpus& gpus, int ranks);

/// The user's options about nodes: the launchers of one job, one a host.
struct NodeOptions {
  std::optional<int> count = {};   ///< --nnodes
  std::optional<int> number = {};  ///< --node-rank
  std::string master = {};         ///< --master: HOST or HOST:PORT
  bool standalone = false;         ///< a world of this host, whatever the environment says
};

/// The place of this launcher, from the options, and from the variables of torchrun, Kubernetes'
/// operators and SLURM where an option is missing.
/// Throws: InvalidArgument naming the variables or options if they describe several nodes, but not
/// this launcher's place among them.
NodePlace find_place(const NodeOptions& options, const Variables& environment);

/// The number of ranks that the environment gives each node, as a value of -n; empty if none.
std::string ranks_of_environment(const Variables& environment);

}  // namespace lockstep::launch
