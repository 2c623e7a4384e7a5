#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <vector>

#include "lockstep/model_view.h"

namespace lockstep::inline v0_2::detail {

/// Parameters of an optimizer, per parameter group.
using ParameterLists = std::vector<std::vector<at::Tensor>>;

ParameterLists parameters_of(const torch::optim::Optimizer& optimizer);

/// The optimizer's own step on other tensors, such as parts of its parameters. Each is updated with
/// the options of its parameter group, its own gradient, and the state that the optimizer has of
/// it. lists: one for each parameter group.
void step_on(torch::optim::Optimizer& optimizer, ParameterLists& lists);

/// The tensors of the state that LibTorch's optimizers keep of a parameter, in a fixed order. Some
/// may be undefined. Empty for the state of an optimizer that does not update each element by
/// itself.
std::vector<at::Tensor*> tensors_of(torch::optim::OptimizerParamState& state);

/// Adds to the number of updates that a state counts. No effect on a state that counts none.
void add_steps(torch::optim::OptimizerParamState& state, std::int64_t steps);

/// Throws: InvalidArgument unless the optimizer is of a class whose own step updates each element
/// by itself. option is the one that requires it.
void check_elementwise(const torch::optim::Optimizer& optimizer, const char* option);

/// Throws: InvalidArgument if the optimizer has a parameter twice, in one group or in two, because
/// its step would update that parameter twice. named: gives the parameter's names.
void check_listed_once(const torch::optim::Optimizer& optimizer, const char* operation,
                       const std::vector<NamedTensor>& named = {});

}  // namespace lockstep::detail
