#pragma once

#include <span>
#include <vector>

#include "comm/cost.h"
#include "plan/model.h"
#include "plan/planned_strategy.h"

namespace lockstep::inline v0_2::plan {

/// The cost of a bucket's exchange; all ranks exchange at the same time.
struct Exchange {
  Traffic traffic = {};
  double coding = 0;  ///< seconds in which a rank selects, encodes and decodes
};

/// The cost of exchanging a bucket of these layers; the mean over steps if not every step
/// exchanges. docs/algorithms.md has the bytes.
/// If strategy.needs_shapes(), the layers must have the shapes of the parameters.
Exchange exchange(const Strategy& strategy, std::span<const Layer> layers,
                  const Placement& placement);

/// The description of a training step whose time is forecast.
struct Setting {
  int nodes = 1;
  int ranks_per_node = 1;
  Costs costs = {};
  Model model = {};
  int batch = 1;       ///< samples per rank and step
  double compute = 0;  ///< seconds of a rank's step without exchange; a third is forward
  double overlap = 1;  ///< fraction of backward's time in which the network can send
  /// With sharding, half of the exchange, the reduce_scatter of gradients, is in backward. The
  /// other half, the all_gather of parameters, follows the update, and nothing hides it.
  bool sharded = false;
};

/// Forecast of a training step. Units: seconds, bytes.
struct Forecast {
  Strategy strategy = {};
  double coding = 0;      ///< encoding and decoding
  double memory = 0;      ///< exchange by the ranks' processors, in shared memory
  double network = 0;     ///< exchange between hosts
  double hidden = 0;      ///< part of network that overlaps with backward
  double sent = 0;        ///< bytes that leave a host
  double step = 0;        ///< the whole step
  double efficiency = 1;  ///< compute ÷ step
  double throughput = 0;  ///< samples per second of all ranks
};

/// Forecasts the time of a step. Buckets of up to 25 MiB are exchanged in sequence. Each exchange
/// begins when backward has reached the bucket's last layer; backward's time is divided by
/// multiplications. Exchange in memory adds to the compute time, exchange between hosts overlaps
/// with it.
/// Throws: InvalidArgument if the strategy needs parameter shapes that the model lacks, or is not
/// fp32 with sharding.
Forecast forecast(const Setting& setting, const Strategy& strategy);

/// The forecasts for several strategies, the fastest first.
std::vector<Forecast> forecasts(const Setting& setting, const std::vector<Strategy>& strategies);

/// The layers of each bucket, in the order of exchange. The first bucket ends at 1 MiB, others at
/// 25 MiB; a larger layer has a bucket of its own.
std::vector<std::vector<Layer>> buckets(const Model& model);

}  // namespace lockstep::plan
