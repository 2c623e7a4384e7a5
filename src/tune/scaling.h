#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep::inline v0_2::tune {

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
class Scaling {
 public:
  /// Fits the terms by least squares: the first two to the times of one rank, then `added` to those
  /// of several. `problem` of the result is set if the times do not determine them.
  static Scaling fit(const std::vector<StepTime>& times, bool same_global_batch);

  /// Global batches per second: of one rank's batches, or of the same global batch.
  double rate(int ranks, int threads) const;
  /// The fastest division of the cores into several ranks, with the time of one global batch.
  /// Cores: at least 2.
  StepTime best_ranks(int cores) const;
  /// Whether one rank with all these cores is faster than several ranks.
  bool one_rank_wins(int cores) const { return rate(1, cores) > 1 / best_ranks(cores).seconds; }
  /// The smallest multiple of the cores, up to 4096, on which the other one wins; none: on no
  /// number.
  std::optional<int> change(int cores) const;

  /// Part of the step of one rank with one thread that threads do not shorten.
  double serial_share() const { return serial / (serial + parallel); }

  double serial = 0;    ///< s
  double parallel = 0;  ///< s
  double added = 0;     ///< s for each rank
  bool same_global_batch = false;
  std::string problem;  ///< why there is no fit
};

}  // namespace lockstep::tune
