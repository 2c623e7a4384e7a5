#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/nn/modules/batchnorm.h>

#include <ostream>

#include "lockstep/group.h"
#include "lockstep/nn/sync_layer.h"

namespace lockstep {

/// Batch normalisation over the samples of all ranks, as if one process had the whole batch:
/// torch::nn::BatchNorm1d, 2d and 3d in one, with their options, parameters and buffers.
///
///     const auto norm_group = world.split(0);  // one for all such layers
///     lockstep::SyncBatchNorm norm(64, norm_group);
///
/// When training, outputs, input gradients and running statistics are those of the whole batch.
/// The gradients of weight and bias are those of the rank's own samples: DistributedDataParallel
/// and DistributedOptimizer average them, as they do all others. In evaluation it is a plain batch
/// norm. Half and bfloat16 inputs are computed in float32.
///
/// Counts of samples may differ between ranks, and be zero on some: such a rank runs an input
/// [0, C, …], and a backward too, of outputs.sum(), say. Sums over ranks are taken in the middle of
/// the backward, before weight()'s factor: where parts are unequal, weigh the loss instead, as the
/// sum over the rank's own samples, times ranks, divided by the samples of all.
///
/// Shapes: [N, C], or [N, C, …] of up to five dimensions; ranks must agree on C only.
///
/// Ranks: all of the group must run the same such layers in the same order, forward and backward.
/// Collectives are issued by the thread that calls forward() or backward(), and waited for there;
/// the group is the layers' own, so that they stay apart from the gradients'.
///
/// Throws: InvalidArgument for an input of other dimensions, channels or dtype, before anything is
/// sent; on every rank, with the group still usable, when all ranks together have one value a
/// channel, when their inputs' dtypes differ, or when they are in different layers of a converted
/// model; and in a backward with create_graph.
///
/// Source: Ioffe, Szegedy: Batch normalization, 2015; gradients as in PyTorch's SyncBatchNorm.
class SyncBatchNormImpl : public torch::nn::BatchNormImplBase<0, SyncBatchNormImpl> {
 public:
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, const Group& group);

  at::Tensor forward(const at::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

  const Group& group() const { return layer_->group; }
  /// Works among that layer's ranks from now on. Called by convert_sync_batchnorm().
  void regroup(c10::intrusive_ptr<detail::SyncLayer> layer) { layer_ = std::move(layer); }

 protected:
  void _check_input_dim(const at::Tensor& input) override;

 private:
  c10::intrusive_ptr<detail::SyncLayer> layer_;
};

TORCH_MODULE(SyncBatchNorm);

}  // namespace lockstep
