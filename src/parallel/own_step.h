#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/model_view.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep::inline v0_2::detail {

/// Parameters of an optimizer, per parameter group.
using ParameterLists = std::vector<std::vector<at::Tensor>>;

ParameterLists parameters_of(const torch::optim::Optimizer& optimizer);

/// The optimizer's own step on other tensors, such as parts of its parameters. Each is updated with
/// the options of its parameter group, its own gradient, and the state that the optimizer has of
/// it. lists: one for each parameter group.
void step_on(torch::optim::Optimizer& optimizer, ParameterLists& lists);

/// Throws: InvalidArgument unless the optimizer is of a class whose own step updates each element
/// by itself. option is the one that requires it.
void check_elementwise(const torch::optim::Optimizer& optimizer, const char* option);

/// Throws: InvalidArgument if the optimizer has a parameter twice, in one group or in two, because
/// its step would update that parameter twice. named: gives the parameter's names.
void check_listed_once(const torch::optim::Optimizer& optimizer, const char* operation,
                       const std::vector<NamedTensor>& named = {});

}  // namespace lockstep::detail
