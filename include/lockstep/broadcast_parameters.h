#pragma once

#include "lockstep/group.h"

namespace torch::nn {
class Module;
}

namespace lockstep::inline v0_2 {

/// Every rank's parameters and buffers of the module = root's. Autograd does not notice.
/// Ranks: all of the group.
/// Throws: InvalidArgument, on every rank, when the modules' names, shapes, strides or dtypes
/// differ, naming the first difference and the ranks; the group stays usable.
void broadcast_parameters(const torch::nn::Module& module, const Group& group, int root = 0);

}  // namespace lockstep
