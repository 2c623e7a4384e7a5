#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/group.h"
#include "lockstep/types.h"

/// Collectives that are part of autograd's graph. Each returns a new tensor when the operation is
/// complete. Gradients are those of the sum over ranks of what each rank differentiates, as in one
/// process that holds the inputs of all ranks. They may be differentiated again.
///
///     const auto all = differentiable::all_gather(features, group);
///     contrastive_loss(features, all).backward();
///
/// With grad mode on, the result requires a gradient on every rank. So a rank whose own tensor
/// requires none takes part in the backward of the others' tensors.
///
/// Ranks: all, in the same order. Each backward is a collective of the group, too: the loss of
/// every rank uses the result, if need be times 0, and every rank runs its backward. In a backward
/// of DistributedDataParallel, use a group of their own, such as world.split(0).
/// Throws: InvalidArgument for a tensor that is not dense or not of a floating point type, before
/// anything is sent. CommError on every rank if ranks run the backwards of different operations.
namespace lockstep::inline v0_2::differentiable {

/// The sum or mean over ranks. The gradient is the sum or mean of the ranks' gradients.
/// Shapes: the same on every rank.
/// Throws: InvalidArgument also for another op.
at::Tensor all_reduce(const at::Tensor& tensor, const Group& group, ReduceOp op = ReduceOp::sum);
/// All ranks' tensors, concatenated in rank order along the first dimension. The gradient is this
/// rank's part of the sum of the ranks' gradients.
/// Shapes: the same on every rank. Tensors without dimensions become one of size() elements.
at::Tensor all_gather(const at::Tensor& tensor, const Group& group);
/// This rank's part of the sum over ranks, along the first dimension. The gradient is all ranks'
/// gradients, concatenated.
/// Shapes: the same on every rank; the first dimension is a multiple of size().
at::Tensor reduce_scatter(const at::Tensor& tensor, const Group& group);
/// Root's tensor. The gradient is the sum of the ranks' gradients on root, and 0 on other ranks.
/// Shapes: the same on every rank.
at::Tensor broadcast(const at::Tensor& tensor, const Group& group, int root = 0);
/// The sum over ranks on root, and 0 on other ranks. The gradient is root's gradient.
/// Shapes: the same on every rank.
at::Tensor reduce(const at::Tensor& tensor, const Group& group, int root = 0);

}  // namespace lockstep::differentiable
