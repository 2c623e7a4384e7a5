#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/host/world/world.h"
#include "core/numeric/estimates.h"
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

/// The shell command that runs the candidate where these variables are inherited.
std::string command_of(const Candidate& candidate, const Program& program, const Topology& topology,
                       const launch::Variables& inherited);

/// How long a run of a program is measured. Units: seconds.
struct Durations {
  double warm_up = 1;  ///< from the end of the first step
  double measured = 3;
  double limit = 60;  ///< from the start to the end of the measurement
};

/// The result of one run.
struct Trial {
  double step = 0;           ///< seconds of a step, the mean over ranks
  std::uint64_t steps = 0;   ///< measured steps of the rank that made the fewest
  std::string problem = {};  ///< why nothing was measured; empty: something was
};

/// A signal asked this process to end during a trial.
struct Interrupted : std::exception {
  explicit Interrupted(int number) : signal(number) {}
  int signal;
};

/// Runs the plan, counts the steps of its ranks by their flight records, and ends the ranks:
/// SIGTERM, and SIGKILL after 5 s. A step ends when a front end has exchanged and updated. Output
/// of the program is discarded, apart from the last lines of a run that fails. No process is left.
///
/// For a program with one thread.
/// Throws: Interrupted, after the ranks have ended. CommError if the system refuses a process.
Trial run_trial(const launch::Plan& plan, const Durations& durations);

/// A candidate with the rates of its runs. Unit of a rate: samples per second with a global batch,
/// else batches of one rank per second.
struct Row {
  Candidate candidate;
  double work = 1;  ///< samples or batches in a step of all ranks
  std::vector<double> rates = {};
  std::string problem = {};  ///< why it could not be measured; empty: it could

  bool measured() const { return problem.empty() && !rates.empty(); }
  double median() const { return detail::median(rates); }
  double lowest() const { return *std::ranges::min_element(rates); }
  double highest() const { return *std::ranges::max_element(rates); }
  /// Seconds of a step, by the median.
  double step() const { return work / median(); }
};

/// The measured rows with this many ranks, the fastest first.
std::vector<const Row*> ranked(const std::vector<Row>& rows, int least = 1,
                               int most = host::max_ranks);

/// Whether the ranges of the two rows' rates overlap: a difference within the spread of the runs.
bool equal_within_spread(const Row& one, const Row& other);

/// Runs a candidate. `stage` is a text for people.
using Run = std::function<Trial(const Candidate&, const std::string& stage)>;

/// Measures candidates in three stages, each in alternating rounds:
///
/// 1. All layouts.
/// 2. The variants of the fastest layout of several ranks, and of at most one other that is equal
///    to it. Skipped if one process is more than twice as fast.
/// 3. The settings together that were faster on their own, if there are several.
///
/// A candidate whose run fails is not run again.
/// Returns the rows in the order in which they were first measured.
std::vector<Row> measure(const std::vector<Candidate>& layouts, const Search& search,
                         const Run& run);

/// The measured time of a step.
struct StepTime {
  int ranks = 1;
  int threads = 1;
  double seconds = 0;
};

/// How the time of a step depends on ranks and threads:
///
///     t(R, T) = w·(serial + parallel / T) + added·R
///
/// w is 1 if a rank's batch is the same for all R, and 1/R if the global batch is. `serial` is the
/// part that threads do not shorten: code that runs on one thread, and memory bandwidth. `added` is
/// the exchange and the memory bandwidth that ranks take from each other; 0 for one rank.
/// Source: Amdahl, Validity of the single processor approach, 1967, with a term for communication.
struct Scaling {
  double serial = 0;    ///< s
  double parallel = 0;  ///< s
  double added = 0;     ///< s for each rank
  bool same_global_batch = false;
  std::string problem = {};  ///< why there is no fit

  /// Fits the terms by least squares: the first two to the times of one rank, then `added` to those
  /// of several. `problem` of the result is set if the times do not determine them.
  static Scaling fit(const std::vector<StepTime>& times, bool same_global_batch);

  /// The formula. Units: seconds.
  double step(int ranks, int threads) const;
  /// The fastest division of the cores into several ranks, with the time of one global batch.
  /// Cores: at least 2.
  StepTime best_ranks(int cores) const;
  /// Whether one rank with all these cores is faster than several ranks.
  bool one_rank_wins(int cores) const { return step(1, cores) < best_ranks(cores).seconds; }
  /// The smallest multiple of the cores, up to 4096, on which the other one wins; none: on no
  /// number.
  std::optional<int> change(int cores) const;
};

/// The conclusion from the rows.
struct Verdict {
  const Row* best = nullptr;  ///< of the rows equal to the fastest, the one with the fewest changed
                              ///< settings, then the faster; null: none was measured
  const Row* one_process = nullptr;    ///< the fastest with one rank; null: none
  const Row* several_ranks = nullptr;  ///< the fastest with several ranks; null: none
  Scaling scaling = {};

  /// Whether one process is faster than several ranks, beyond the spread.
  bool one_process_wins() const;
  bool several_ranks_win() const;
};
Verdict conclude(const std::vector<Row>& rows, bool same_global_batch);

/// The conclusion as lines for people: who wins, and on how many cores that changes.
std::vector<std::string> lines(const Verdict& verdict, int cores);

/// "2 ranks × 1 thread, not bound, buckets of 5 MiB, shared memory".
std::string text(const Candidate& candidate);

}  // namespace lockstep::tune
