#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tune/candidates.h"
#include "tune/scaling.h"
#include "tune/trial.h"

namespace lockstep::inline v0_2::tune {

/// A candidate with the rates of its runs. Unit of a rate: global batches per second, which are
/// samples per second divided by a constant: the batch of one rank, or the global batch.
struct Row {
  Candidate candidate;
  std::vector<double> rates = {};
  std::string problem = {};  ///< why it could not be measured; empty: it could

  bool measured() const { return problem.empty() && !rates.empty(); }
  double median() const;
  double lowest() const;
  double highest() const;
  /// Seconds of a step, by the median.
  double step(bool same_global_batch) const;
};

/// Whether the ranges of the two rows' rates overlap: a difference within the spread of the runs.
bool equal_within_spread(const Row& one, const Row& other);

struct Search {
  int rounds = 3;  ///< runs of each candidate
  bool same_global_batch = false;
  Space space = {};
};

/// Measures candidates in three stages, each in alternating rounds:
///
/// 1. All layouts.
/// 2. The variants of the fastest layout of several ranks, and of at most one other that is equal
///    to it. Skipped if one process is more than twice as fast.
/// 3. The settings together that were faster on their own, if there are several.
///
/// A candidate whose run fails is not run again. If shared memory is not possible with the program,
/// it is not tried with other layouts.
/// Returns the rows in the order in which they were first measured.
std::vector<Row> measure(
    const std::vector<Candidate>& layouts, const Search& search,
    const std::function<Trial(const Candidate&, const std::string& stage)>& run);

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
