#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "lockstep/broadcast_parameters.h"
#include "lockstep/group.h"

namespace torch::nn {
class Module;
}

namespace lockstep::inline v0_2::detail {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// A module's tensors in order of registration. A tensor with several names is listed once, under
/// the first.
struct ModelState {
  explicit ModelState(const torch::nn::Module& module);

  std::vector<NamedTensor> parameters;
  std::vector<NamedTensor> buffers;
};

/// A line for each tensor, as ranks must agree on. with_values adds a checksum.
std::vector<std::string> describe(const ModelState& state, bool with_values);

/// broadcast_parameters without the check.
void broadcast(const ModelState& state, const Group& group, int root);

}  // namespace lockstep::detail
