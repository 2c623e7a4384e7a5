#pragma once

#include <cstddef>

#include "lockstep/group.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

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
/// What a torch::nn::BatchNorm still does itself: it refuses a rank's batch of one value a channel
/// when training, which a SyncBatchNorm takes. A clone() of a converted model is a plain one until
/// it is converted too; so is a layer whose running mean (its weight, where it has none) was
/// assigned anew instead of written. Note [How a batch norm is converted] says how.
///
/// Ranks: all of the group, with the same model.
/// Throws: InvalidArgument, on every rank, when the ranks' layers differ; the group stays usable.
/// BackendUnavailable when another library has taken batch_norm over in this process.
std::size_t convert_sync_batchnorm(torch::nn::Module& model, const Group& group);

}  // namespace lockstep
