#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/system/topology.h"
#include "launch/plan.h"

namespace lockstep::inline v0_2::tune {

/// The size of gradient buckets that programs have by default. Units: MiB.
inline constexpr int default_bucket = 25;

/// One way to run a program on this host.
struct Candidate {
  int ranks = 1;
  int threads = 1;                          ///< compute threads of each rank
  launch::Bind bind = launch::Bind::cores;  ///< whether each rank is bound to its cores
  int bucket = default_bucket;              ///< MiB
  bool share_memory = false;                ///< one copy of the parameters for all ranks

  /// Number of settings that differ from those of `lockstep run -n RANKS`.
  int changes() const;
  bool operator==(const Candidate&) const = default;
};

/// The program whose runs are compared.
struct Program {
  std::string name;
  std::vector<std::string> arguments = {};
  /// Samples of a step of all ranks. A word {batch} in the arguments becomes global_batch ÷ ranks.
  /// Empty: the batch of a rank is the same in all runs.
  std::optional<int> global_batch = {};
};

/// The settings that tune varies, and the number of its runs.
struct Search {
  std::vector<int> ranks = {};           ///< numbers of ranks; empty: all sensible ones
  std::vector<int> buckets = {5, 100};   ///< sizes to compare with the default, in MiB
  int rounds = 3;                        ///< runs of each candidate
  std::optional<int> global_batch = {};  ///< of Program
};

/// The divisions of the cores among ranks: each number of ranks that divides the cores, so that no
/// rank's cores cross a NUMA node unless it has whole nodes. Also one rank with half and with a
/// quarter of the threads, which show how one process scales. Omits numbers of ranks that do not
/// divide the program's global batch.
/// Throws: InvalidArgument for numbers of ranks that this host cannot run, and for a word {batch}
/// without a global batch.
std::vector<Candidate> layouts(const Topology& topology, const Program& program,
                               const Search& search);

/// The candidates that differ from this one in a single setting: not bound, another bucket size,
/// shared memory. None for one rank.
std::vector<Candidate> variants(const Candidate& layout, const Search& search);

/// The plan for running the candidate. Variables that tune varies replace inherited ones.
/// Throws: InvalidArgument as launch::make_plan().
launch::Plan plan_of(const Candidate& candidate, const Program& program, const Topology& topology,
                     launch::Variables inherited);

/// The shell command that runs the candidate.
std::string command_of(const Candidate& candidate, const Program& program,
                       const Topology& topology);

}  // namespace lockstep::tune
