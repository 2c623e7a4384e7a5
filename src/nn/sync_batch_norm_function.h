#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <utility>

#include "lockstep/sync_batch_norm.h"

namespace lockstep::inline v0_2::detail {

/// Statistics that normalise a batch of all ranks: the same bits on every rank.
struct BatchStatistics {
  at::Tensor mean;      ///< double [C]
  at::Tensor variance;  ///< double [C], divided by count
  std::int64_t count;   ///< values a channel; of all ranks
};

/// Of an input [N, C, …] of which every rank has a part, which may be empty. Each rank's count,
/// mean and sum of squared deviations are gathered and combined in rank order.
///
/// Ranks: all of the layer's group.
/// Throws: InvalidArgument, on every rank, when ranks are in different layers, or have inputs of
/// different dtypes.
/// Source: Chan, Golub, LeVeque: Updating formulae and a pairwise algorithm for computing sample
/// variances, 1979.
BatchStatistics batch_statistics(const at::Tensor& input, const SyncLayer& layer);

/// The two tensors of doubles [C], summed over ranks in rank order.
/// Ranks: all of the layer's group.
/// Throws: InvalidArgument, on every rank, when ranks are in different layers.
std::pair<at::Tensor, at::Tensor> sum_over_ranks(const at::Tensor& a, const at::Tensor& b,
                                                 const SyncLayer& layer);

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
