#pragma once

#include <chrono>
#include <functional>
#include <span>
#include <string>

#include "lockstep/group.h"

namespace lockstep::inline v0_2 {

/// How well training runs on several ranks. The efficiency is the time of a step that one rank
/// takes alone, divided by the time of the same step of all ranks together, each rank with a batch
/// of its own. At an efficiency of 1, N ranks train N times as many samples a second as one rank.
struct Efficiency {
  double alone = 0;     ///< time of a step of one rank alone: median of the rounds. Units: seconds
  double together = 0;  ///< time of a step of all ranks: median of the rounds. Units: seconds
  double median = 1;    ///< of the rounds' efficiencies
  double least = 1;     ///< of the rounds' efficiencies
  double most = 1;      ///< of the rounds' efficiencies
  int rounds = 0;
  std::string doubt = {};  ///< why the values must not be used; empty if they may

  bool reliable() const { return doubt.empty(); }
};

struct EfficiencyOptions {
  int rounds = 5;                       ///< at least 1
  std::chrono::milliseconds time{200};  ///< of the steps together in a round; at least one step
};

/// Measures the efficiency. In each round, rank 0 calls alone() some times while the other ranks
/// wait, then every rank calls together() as often. The rounds are preceded by a few calls of both.
/// The result is not reliable in these cases:
/// - other programs used more than a tenth of the ranks' processors on a host
/// - the efficiencies of the rounds are further apart than 0.2
/// - the median is above 1.05, which means that a rank alone was disturbed.
///
/// alone: one training step of this rank without communication. together: the same step of all
/// ranks. Both work on copies, since they change the parameters.
/// Ranks: all; every rank has the same result.
/// Throws: InvalidArgument for no rounds or a negative time; what the steps throw.
Efficiency measure_efficiency(const Group& world, const std::function<void()>& alone,
                              const std::function<void()>& together,
                              const EfficiencyOptions& options = {});

/// The same from times that were measured. other_load: the share of the processors that other
/// programs used. Units: seconds a step, one value for each round.
/// Throws: InvalidArgument unless both have the same number of rounds, at least one.
Efficiency efficiency_of(std::span<const double> alone, std::span<const double> together,
                         double other_load = 0);

/// "efficiency 94.6 % (93.1 to 95.8 over 5 rounds): a step takes 12.0 ms on one rank, 12.7 ms on
/// 2", or why it was not measured reliably.
std::string to_text(const Efficiency& efficiency, int ranks);

}  // namespace lockstep
