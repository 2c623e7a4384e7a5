#pragma once

#include <span>
#include <vector>

#include "comm/cost.h"
#include "plan/model.h"
#include "plan/planned_strategy.h"

namespace lockstep::inline v0_2::plan {

/// The cost of a bucket's exchange, in all ranks at once.
struct Exchange {
  Traffic traffic = {};
  double coding = 0;  ///< of a rank's processor: selecting, encoding, decoding. Units: seconds
};

/// The exchange of a bucket of these layers, for a mean over steps where not every step exchanges.
/// docs/algorithms.md has the bytes. Throws: InvalidArgument when the strategy needs shapes that
/// the model has not, or more ranks of a host than it can reckon with.
Exchange exchange(const Strategy& strategy, std::span<const Layer> layers,
                  const Placement& placement);

/// A training step to be foretold.
struct Setting {
  int nodes = 1;
  int ranks_per_node = 1;
  Costs costs = {};
  Model model = {};
  int batch = 1;       ///< samples of a rank's step
  double compute = 0;  ///< a rank's step without exchange, a third of it forward. Units: seconds
  double overlap = 1;  ///< share of backward's time in which the network carries on
};

/// Forecast of a training step. Units: seconds, bytes.
struct Forecast {
  Strategy strategy = {};
  double coding = 0;      ///< of the step: encoding and decoding
  double memory = 0;      ///< of the step: exchange that takes the ranks' own processors
  double network = 0;     ///< between hosts, during backward and after
  double hidden = 0;      ///< of that: during backward
  double sent = 0;        ///< bytes that leave a host
  double step = 0;        ///< all of it
  double efficiency = 1;  ///< compute over step
  double throughput = 0;  ///< samples a second of all ranks
};

/// How long a step takes: buckets of up to 25 MiB leave one after another, each when backward has
/// come to its last layer, by multiplications. Work in memory adds to the compute; what passes
/// between hosts goes on beside it. Throws: InvalidArgument when the strategy needs shapes that the
/// model has not.
Forecast forecast(const Setting& setting, const Strategy& strategy);

/// All of them, the fastest first.
std::vector<Forecast> forecasts(const Setting& setting, const std::vector<Strategy>& strategies);

/// The layers of each bucket, in the order in which they leave: the first once it has 1 MiB, each
/// of up to 25 MiB, and larger layers by themselves.
std::vector<std::vector<Layer>> buckets(const Model& model);

}  // namespace lockstep::plan
