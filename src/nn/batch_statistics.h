#pragma once

#include <ATen/core/Tensor.h>

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

}  // namespace lockstep::detail
