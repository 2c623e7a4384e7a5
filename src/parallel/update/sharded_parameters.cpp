#include "parallel/update/sharded_parameters.h"

#include <ATen/core/grad_mode.h>

#include <exception>

namespace lockstep::inline v0_2::detail {

std::vector<at::Tensor> lay_out(const Bucket& bucket, const at::Tensor& flat) {
  std::vector<at::Tensor> tensors;
  for (const auto& slice : bucket.slices()) {
    const auto place = static_cast<std::size_t>(flat.storage_offset()) + slice.offset;
    tensors.push_back(alias(flat, place, slice.parameter));
  }
  return tensors;
}

void leave(const at::Tensor& tensor, const at::Tensor& values) noexcept {
  if (!tensor.defined() || tensor.const_data_ptr() != values.const_data_ptr()) return;
  try {
    at::Tensor(tensor).set_data(tensor.detach().clone());
  } catch (const std::exception&) {
    // Memory is short.
  }
}

ShardedParameters::ShardedParameters(std::span<const BucketReducer> reducers, const Group& group)
    : group_(group) {
  for (const auto& reducer : reducers) {
    const auto& gradients = reducer.bucket;
    const auto own = shard_of(gradients.values(), group_);
    const auto numel = own.length() * static_cast<std::size_t>(group_.size());
    auto& bucket = buckets_.emplace_back(ShardedBucket{
        .reducer = &reducer,
        .own = own,
        .flat = group_.empty({static_cast<std::int64_t>(numel)}, gradients.values().scalar_type())
                    .zero_()});
    bucket.values = lay_out(gradients, bucket.flat);
    for (const auto& slice : gradients.slices()) {
      const auto part = intersection(own, slice);
      bucket.parts.push_back(flat_part(bucket.flat, slice.offset + part.begin, part.length()));
    }
  }
  move_back();
}

ShardedParameters::~ShardedParameters() {
  const at::NoGradGuard no_grad;
  for (const auto& bucket : buckets_) {
    for (std::size_t i = 0; i < bucket.values.size(); ++i)
      leave(bucket.slices()[i].parameter, bucket.values[i]);
  }
}

void ShardedParameters::move_back() {
  const at::NoGradGuard no_grad;
  for (const auto& bucket : buckets_) {
    for (std::size_t i = 0; i < bucket.values.size(); ++i) {
      at::Tensor parameter = bucket.slices()[i].parameter;
      const auto& values = bucket.values[i];
      if (parameter.const_data_ptr() == values.const_data_ptr()) continue;
      values.copy_(parameter);
      parameter.set_data(values);
    }
  }
}

std::vector<at::Tensor> ShardedParameters::gradients() const {
  std::vector<at::Tensor> gradients;
  for (const auto& bucket : buckets_) {
    if (bucket.shard() == nullptr) continue;
    for (std::size_t i = 0; i < bucket.slices().size(); ++i) {
      const auto& gradient = bucket.shard()->gradient(i);
      if (gradient.defined()) gradients.push_back(gradient);
    }
  }
  return gradients;
}

void ShardedParameters::discard_gradients() const {
  for (const auto& bucket : buckets_) {
    if (bucket.shard() != nullptr) bucket.shard()->discard();
  }
}

Work ShardedParameters::gather(const ShardedBucket& bucket) const {
  const auto own = flat_part(bucket.flat, bucket.own.begin, bucket.own.length());
  return group_.all_gather(bucket.flat, own);
}

}  // namespace lockstep::detail
