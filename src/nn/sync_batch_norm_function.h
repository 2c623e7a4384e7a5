#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include "lockstep/sync_batch_norm.h"

namespace lockstep::inline v0_2::detail {

/// The tensors of a batch norm. Those that it does not have are undefined.
struct NormTensors {
  at::Tensor weight, bias;
  at::Tensor running_mean, running_var;
};

/// Normalises the input [N, C, …] by mean and variance over all ranks' samples, and updates the
/// running statistics. The backward sums over ranks for the gradient of the input. The gradients of
/// weight and bias are those of this rank's samples.
/// Ranks: all of the layer's group, in forward and in backward.
/// Throws: InvalidArgument, before any collective, for an input of wrong sizes or dtype. The same
/// on every rank when there is only one value per channel, or ranks are in different layers.
at::Tensor sync_batch_norm(const at::Tensor& input, const NormTensors& tensors, double momentum,
                           double eps, const c10::intrusive_ptr<SyncLayer>& layer);

}  // namespace lockstep::detail
