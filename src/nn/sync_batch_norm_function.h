#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <utility>

#include "lockstep/sync_batch_norm.h"

namespace lockstep::inline v0_2::detail {

/// Statistics of a batch over all ranks. Bitwise equal on every rank.
struct BatchStatistics {
  at::Tensor mean;      ///< double [C]
  at::Tensor variance;  ///< double [C], divided by count
  std::int64_t count;   ///< values per channel over all ranks
};

/// Statistics of an input [N, C, …] over all ranks. A rank's part may be empty. Gathers each rank's
/// count, mean and sum of squared deviations, and combines them in rank order.
///
/// Ranks: all of the layer's group.
/// Throws: InvalidArgument, on every rank, when ranks are in different layers, or have inputs of
/// different dtypes.
/// Source: Chan, Golub, LeVeque: Updating formulae and a pairwise algorithm for computing sample
/// variances, 1979.
BatchStatistics batch_statistics(const at::Tensor& input, const SyncLayer& layer);

/// Sums two tensors of doubles [C] over ranks, in rank order.
/// Ranks: all of the layer's group.
/// Throws: InvalidArgument, on every rank, when ranks are in different layers.
std::pair<at::Tensor, at::Tensor> sum_over_ranks(const at::Tensor& a, const at::Tensor& b,
                                                 const SyncLayer& layer);

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
