#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/nn/modules/batchnorm.h>

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <utility>

#include "lockstep/group.h"

namespace lockstep::inline v0_2::detail {

/// A layer whose batch is spread over ranks. Autograd's graph shares it with the module.
struct SyncLayer : torch::CustomClassHolder {
  SyncLayer(Group ranks, std::string called = {}, std::int64_t place = 0)
      : group(std::move(ranks)), name(std::move(called)), number(place) {}

  /// How messages begin.
  std::string prefix() const;

  Group group;
  std::string name;     ///< within the converted model; empty for a layer of its own
  std::int64_t number;  ///< from 1, in the converted model's order: the same on all ranks
};

}  // namespace lockstep::detail

namespace lockstep::inline v0_2 {

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
/// Counts of samples may differ between ranks, and be zero on some. A rank without samples runs an
/// input [0, C, …], and a backward too, of outputs.sum(), say. Sums over ranks are taken in the
/// middle of the backward, before weight()'s factor. Where parts are unequal, weigh the loss
/// instead: take the sum over the rank's own samples, times ranks, divided by the samples of all.
///
/// Shapes: [N, C], or [N, C, …] of up to five dimensions; ranks must agree on C only.
///
/// Ranks: all of the group must run the same such layers in the same order, forward and backward.
/// Collectives are issued by the thread that calls forward() or backward(), and waited for there;
/// the group is the layers' own, so that they stay apart from the gradients'.
///
/// Throws: InvalidArgument for an input of other dimensions, channels or dtype, before anything is
/// sent, and in a backward with create_graph. InvalidArgument on every rank, with the group still
/// usable, when all ranks together have one value a channel or their inputs' dtypes differ. The
/// same when ranks run different layers of a converted model.
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

namespace torch::nn {
class Module;
}

namespace lockstep::inline v0_2 {

/// Every torch::nn::BatchNorm1d, 2d and 3d of the model, and every SyncBatchNorm, normalises over
/// the samples of all ranks from now on when it trains, as SyncBatchNorm says. Returns how many.
///
///     lockstep::convert_sync_batchnorm(*model, world);
///     lockstep::DistributedDataParallel ddp(model, world);
///
/// Modules stay what and where they are, whoever holds them: a member, a Sequential, a list. So do
/// parameters, buffers, names, options and the training flag; optimizers and checkpoints made
/// before hold. The layers share one group, split from this one.
///
/// A converted torch::nn::BatchNorm still refuses a rank's batch of one value a channel when
/// training, which a SyncBatchNorm takes. A clone() of a converted model is a plain model until it
/// is converted too. A layer becomes plain when its running mean (its weight, where it has none) is
/// assigned anew instead of written. Note [How a batch norm is converted] says how.
///
/// Ranks: all of the group, with the same model.
/// Throws: InvalidArgument, on every rank, when the ranks' layers differ; the group stays usable.
/// BackendUnavailable when another library has taken batch_norm over in this process.
std::size_t convert_sync_batchnorm(torch::nn::Module& model, const Group& group);

}  // namespace lockstep
