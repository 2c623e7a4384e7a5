#pragma once

#include "launch/gpus.h"
#include "launch/plan.h"

namespace lockstep::inline v0_2::launch {

/// Decides which GPUs the ranks use. Looks for GPUs only if the options ask for them.
/// Throws: InvalidArgument naming the option, what was found and what to do.
RankGpus choose_gpus(const Options& options, const Variables& inherited, const GpuSources& sources);

/// Checks that there are enough GPUs for this number of ranks.
/// Throws: InvalidArgument naming --share-gpus.
void check_ranks(const RankGpus& gpus, int ranks);

}  // namespace lockstep::launch
