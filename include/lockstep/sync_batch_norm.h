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

/// The group and the name of a layer whose batch is distributed over ranks. Shared by the module
/// and autograd's graph.
struct SyncLayer : torch::CustomClassHolder {
  SyncLayer(Group ranks, std::string called = {}, std::int64_t place = 0)
      : group(std::move(ranks)), name(std::move(called)), number(place) {}

  /// The text with which error messages about this layer begin.
  std::string prefix() const;

  Group group;
  std::string name;     ///< name in the converted model; empty for a layer that was not converted
  std::int64_t number;  ///< index in the converted model, from 1: the same on all ranks
};

}  // namespace lockstep::detail

namespace lockstep::inline v0_2 {

/// Batch normalisation over the samples of all ranks, as if one process had the whole batch.
/// Replaces torch::nn::BatchNorm1d, 2d and 3d, with the same options, parameters and buffers.
///
///     const auto norm_group = world.split(0);  // one group for all such layers
///     lockstep::SyncBatchNorm norm(64, norm_group);
///
/// In training mode, outputs, input gradients and running statistics are those of the whole batch.
/// The gradients of weight and bias are those of the rank's own samples; DistributedDataParallel
/// and DistributedOptimizer average them like all other gradients. In evaluation mode the layer is
/// a plain batch norm. float16 and bfloat16 inputs are computed in float32.
///
/// Ranks may have different numbers of samples, and some may have none. A rank without samples must
/// run forward with an input [0, C, …], and a backward, such as that of outputs.sum(). The layer
/// sums over ranks during the backward, before the factor of weight() is applied. With different
/// numbers of samples, therefore weight the loss instead: (sum of the rank's losses) · ranks /
/// (samples of all ranks).
///
/// Shapes: [N, C] or [N, C, …] with up to five dimensions; only C must be equal on all ranks.
///
/// Ranks: all must run the same SyncBatchNorm layers in the same order, forward and backward. The
/// thread that calls forward() or backward() issues the collectives and waits for them. Use a group
/// of the layers' own, so that their collectives do not mix with those of the gradients.
///
/// Throws: InvalidArgument, before anything is sent, for an input of unsupported dimensions,
/// channels or dtype, and in a backward with create_graph. InvalidArgument, on every rank, if all
/// ranks together have one value per channel, if the dtypes of the inputs differ, or if ranks run
/// different layers of a converted model; the group stays usable. On a device, backwards are not
/// compared, because every layer would wait for the device.
///
/// Source: Ioffe, Szegedy: Batch normalization, 2015; gradients as in PyTorch's SyncBatchNorm.
class SyncBatchNormImpl : public torch::nn::BatchNormImplBase<0, SyncBatchNormImpl> {
 public:
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, const Group& group);

  at::Tensor forward(const at::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

  const Group& group() const { return layer_->group; }
  /// Replaces the group and the name. Called by convert_sync_batchnorm().
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

/// Converts every torch::nn::BatchNorm1d, 2d and 3d and every SyncBatchNorm of the model: in
/// training mode they normalise over the samples of all ranks, as described at SyncBatchNorm.
/// Returns the number of converted layers.
///
///     lockstep::convert_sync_batchnorm(*model, world);
///     lockstep::DistributedDataParallel ddp(model, world);
///
/// The module objects stay the same, so members, Sequentials and lists that refer to them stay
/// valid. Parameters, buffers, names, options and the training flag do not change, so existing
/// optimizers and checkpoints stay valid. The layers share one group, which is split from this one.
///
/// Unlike a SyncBatchNorm, a converted torch::nn::BatchNorm throws in training mode if a rank's own
/// batch has one value per channel. A clone() of a converted model is not converted. A layer is no
/// longer converted after a new tensor was assigned to its running_mean (or to its weight, if it
/// has no running_mean); writing into the tensor is safe. Note [How a batch norm is converted] is
/// in src/nn/convert_sync_batchnorm.cpp.
///
/// Ranks: all, with the same model.
/// Throws: InvalidArgument, on every rank, if the layers differ between ranks; the group stays
/// usable. BackendUnavailable if another library has replaced the operator batch_norm in this
/// process.
std::size_t convert_sync_batchnorm(torch::nn::Module& model, const Group& group);

}  // namespace lockstep
