#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "lockstep/group.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

/// Every rank's parameters and buffers of the module = root's. Autograd does not notice.
/// Ranks: all of the group.
/// Throws: InvalidArgument, on every rank, when the modules' names, shapes, strides or dtypes
/// differ, naming the first difference and the ranks; the group stays usable.
void broadcast_parameters(const torch::nn::Module& module, const Group& group, int root = 0);

namespace detail {

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

}  // namespace detail

}  // namespace lockstep
