#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <vector>

namespace lockstep::inline v0_2::detail {

/// The tensors of the state that LibTorch's optimizers keep of a parameter, in a fixed order. Some
/// may be undefined. Empty for the state of an optimizer that does not update each element by
/// itself.
std::vector<at::Tensor*> tensors_of(torch::optim::OptimizerParamState& state);

/// Adds to the number of updates that a state counts. No effect on a state that counts none.
void add_steps(torch::optim::OptimizerParamState& state, std::int64_t steps);

}  // namespace lockstep::detail
