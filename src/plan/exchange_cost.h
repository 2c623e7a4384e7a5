#pragma once

#include <span>

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

}  // namespace lockstep::plan
