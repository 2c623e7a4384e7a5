#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include "lockstep/sync_batch_norm.h"

namespace lockstep::inline v0_2::detail {

/// A batch norm's tensors, undefined where it has none.
struct NormTensors {
  at::Tensor weight, bias;
  at::Tensor running_mean, running_var;
};

/// The input [N, C, …] normalised by mean and variance over all ranks' samples; moves the running
/// statistics. The backward sums over ranks for the input's gradient, and gives weight and bias the
/// gradient of this rank's samples.
/// Ranks: all of the layer's group, in forward and in backward.
/// Throws: InvalidArgument, before anything is sent, for an input that does not fit; on every rank
/// when there is one value a channel in all, or ranks are in different layers.
at::Tensor sync_batch_norm(const at::Tensor& input, const NormTensors& tensors, double momentum,
                           double eps, const c10::intrusive_ptr<SyncLayer>& layer);

}  // namespace lockstep::detail
