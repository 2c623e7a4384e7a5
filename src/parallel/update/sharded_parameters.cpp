#include "parallel/update/sharded_parameters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "core/text.h"
#include "group/instances.h"
#include "group/tensors.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {
namespace {

/// Calls fn with each parameter and this rank's part of it.
template <class Function>
void for_each(const ShardedBucket& bucket, const Function& fn) {
  for (std::size_t i = 0; i < bucket.parts.size(); ++i) fn(bucket.slices()[i], bucket.parts[i]);
}

/// The tensor number k of a parameter's state on this rank; null if there is none.
const at::Tensor* tensor_at(const ParamStates& states, const at::Tensor& parameter, std::size_t k) {
  auto* const state = find_state(states, parameter);
  if (state == nullptr) return nullptr;
  const auto tensors = tensors_of(*state);
  return k < tensors.size() && tensors[k]->defined() ? tensors[k] : nullptr;
}

/// Whether a state has a part already, of an earlier DistributedOptimizer.
bool is_part(const at::Tensor& tensor, const at::Tensor& parameter, std::size_t length) {
  return tensor.sizes() != parameter.sizes() && tensor.dim() == 1 &&
         tensor.numel() == static_cast<std::int64_t>(length);
}

/// Throws: CheckpointError unless the state is that of a whole parameter.
void check_whole(const at::Tensor& tensor, const at::Tensor& parameter) {
  if (tensor.sizes() == parameter.sizes()) return;
  throw CheckpointError(concat(
      "optimizer: got the state of ", tensor.numel(), " elements of a parameter of sizes ",
      parameter.sizes(),
      ", which remains from a DistributedOptimizer that divided it among ranks, expected the "
      "state of the whole parameter: save a checkpoint before the DistributedOptimizer is "
      "destroyed"));
}

}  // namespace

std::vector<at::Tensor> lay_out(const Bucket& bucket, const at::Tensor& flat) {
  std::vector<at::Tensor> tensors;
  for (const auto& slice : bucket.slices()) {
    const auto place = static_cast<std::size_t>(flat.storage_offset()) + slice.offset;
    tensors.push_back(alias(flat, place, slice.parameter));
  }
  return tensors;
}

at::Tensor laid_out(const at::Tensor& tensor, const at::Tensor& like) {
  return tensor.strides() == like.strides() && has_values_in_memory(tensor)
             ? tensor
             : at::empty_like(like, tensor.options()).copy_(tensor);
}

void leave(const at::Tensor& tensor, const at::Tensor& values) noexcept {
  if (!tensor.defined() || tensor.const_data_ptr() != values.const_data_ptr()) return;
  try {
    at::Tensor(tensor).set_data(tensor.detach().clone());
  } catch (const std::exception&) {
    // Memory is short.
  }
}

ShardedParameters* ShardedParameters::of(const torch::optim::Optimizer& optimizer) {
  // Checkpoints refer to an optimizer only.
  const auto all = Instances<ShardedParameters>::all();
  const auto is_of = [&](const auto* one) { return &one->optimizer_ == &optimizer; };
  const auto found = std::ranges::find_if(all.list, is_of);
  return found == all.list.end() ? nullptr : *found;
}

void ShardedParameters::check_cuttable(const ParamStates& states) const {
  for (const auto& bucket : buckets_) {
    for_each(bucket, [&](const Bucket::Slice& slice, const at::Tensor& /*part*/) {
      auto* const state = find_state(states, slice.parameter);
      if (state == nullptr) return;
      const auto range = intersection(bucket.own, slice);
      for (const auto* tensor : tensors_of(*state)) {
        if (tensor->defined() && !is_part(*tensor, slice.parameter, range.length()))
          check_whole(*tensor, slice.parameter);
      }
    });
  }
}

void ShardedParameters::cut(ParamStates& states) const {
  const at::NoGradGuard no_grad;
  check_cuttable(states);
  for (const auto& bucket : buckets_) {
    for_each(bucket, [&](const Bucket::Slice& slice, const at::Tensor& part) {
      auto state = take_state(states, slice.parameter);
      if (state == nullptr) return;
      const auto range = intersection(bucket.own, slice);
      for (auto* tensor : tensors_of(*state)) {
        if (!tensor->defined() || is_part(*tensor, slice.parameter, range.length())) continue;
        const auto whole = laid_out(*tensor, slice.values);
        *tensor = flat_part(whole, range.begin, range.length()).clone();
      }
      states[part.unsafeGetTensorImpl()] = std::move(state);
    });
  }
}

/// The states of whole parameters on rank 0, empty on other ranks. Ranks: all.
ParamStates ShardedParameters::gather_state() const {
  const bool collects = group_.rank() == 0;
  const auto& own = optimizer_.state();
  ParamStates whole;
  if (collects) {
    for (const auto& [parameter, state] : own) whole[parameter] = state->clone();
  }
  std::size_t most = 0;
  for (const auto& [parameter, state] : own) most = std::max(most, tensors_of(*state).size());
  for (const auto& bucket : buckets_) {
    if (collects) {
      for_each(bucket, [&](const Bucket::Slice& slice, const at::Tensor& part) {
        if (auto state = take_state(whole, part))
          whole[slice.parameter.unsafeGetTensorImpl()] = std::move(state);
      });
    }
    const auto length = static_cast<std::int64_t>(bucket.own.length());
    for (std::size_t k = 0; k < most; ++k) {
      at::Tensor packed;
      for_each(bucket, [&](const Bucket::Slice& slice, const at::Tensor& part) {
        const auto* tensor = tensor_at(own, part, k);
        if (tensor == nullptr) return;
        if (!packed.defined()) packed = at::zeros({length}, tensor->options());
        const auto range = intersection(bucket.own, slice);
        if (range.length() == 0) return;
        flat_part(packed, slice.offset + range.begin - bucket.own.begin, range.length())
            .copy_(*tensor);
      });
      if (!packed.defined()) continue;
      const auto all = collects ? at::empty({length * group_.size()}, packed.options()) : packed;
      group_.gather(all, packed, 0).wait();
      if (!collects) continue;
      for_each(bucket, [&](const Bucket::Slice& slice, const at::Tensor& part) {
        if (tensor_at(own, part, k) == nullptr) return;
        auto& state = *whole[slice.parameter.unsafeGetTensorImpl()];
        *tensors_of(state)[k] = alias(all, slice.offset, slice.parameter);
      });
    }
  }
  return whole;
}

WholeState::WholeState(const torch::optim::Optimizer* optimizer, const Group* group)
    : sharded_(optimizer != nullptr ? ShardedParameters::of(*optimizer) : nullptr) {
  if (sharded_ == nullptr) return;
  const auto& own = sharded_->group_;
  if (group == nullptr && own.size() > 1) return;
  if (group != nullptr && group->size() != own.size()) {
    throw CheckpointError(concat("optimizer: got a group of ", group->size(),
                                 " ranks, expected the ", own.size(),
                                 " ranks that share its state: pass the group of the "
                                 "DistributedOptimizer"));
  }
  const at::NoGradGuard no_grad;
  try {
    auto whole = sharded_->gather_state();
    if (own.rank() == 0) sharded_->whole_ = std::move(whole);
  } catch (const std::exception& error) {
    own.communicator().fail(concat("checkpoint: ", error.what()));
    throw;
  }
}

WholeState::~WholeState() {
  if (sharded_ != nullptr) sharded_->whole_.reset();
}

const ParamStates& whole_state(const torch::optim::Optimizer& optimizer) {
  const auto* const found = ShardedParameters::of(optimizer);
  if (found != nullptr && !found->whole_) {
    throw CheckpointError(
        concat("optimizer: its state is divided among ", found->group_.size(),
               " ranks, expected a checkpoint of all of them: pass the group of the "
               "DistributedOptimizer to Checkpoint::save()"));
  }
  const auto& states = found != nullptr ? *found->whole_ : optimizer.state();
  for (const auto& parameter : all_parameters(optimizer)) {
    auto* const state = find_state(states, parameter);
    if (state == nullptr) continue;
    for (const auto* tensor : tensors_of(*state)) {
      if (tensor->defined()) check_whole(*tensor, parameter);
    }
  }
  return states;
}

}  // namespace lockstep::detail
