#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <map>
#include <memory>

#include "tests/random_programs/rank.h"

namespace lockstep::random_programs {

using OptimizerState = std::map<std::size_t, std::unique_ptr<torch::optim::OptimizerParamState>>;

/// A copy of the optimizer's state, keyed by the numbers of parameters.
OptimizerState state_of(Rank::Holding& holding);

void load_state(Rank::Holding& holding, const OptimizerState& saved);

}  // namespace lockstep::random_programs
