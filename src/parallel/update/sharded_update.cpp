#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <exception>
#include <unordered_map>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "core/text.h"
#include "group/instances.h"
#include "lockstep/error.h"
#include "parallel/reducer/gradient.h"
#include "parallel/update/sharded_parameters.h"

// The steps of ShardedParameters.

namespace lockstep::inline v0_2::detail {
namespace {

/// This rank's part of the mean of a gradient; undefined if there is none.
at::Tensor gradient_part(const ShardedBucket& bucket, std::size_t index) {
  const auto& slice = bucket.slices()[index];
  const auto& gradient = slice.parameter.grad();
  if (!gradient.defined()) {
    return bucket.shard() != nullptr ? bucket.shard()->gradient(index) : at::Tensor();
  }
  expect_copyable(gradient, slice);
  const auto range = intersection(bucket.own, slice);
  return flat_part(laid_out(gradient, slice.values), range.begin, range.length());
}

/// Gives the parts of a bucket their part of the gradients. Returns whether there is any.
bool set_gradients(const ShardedBucket& bucket) {
  bool has_any = false;
  for (const auto i : bucket.optimized) {
    auto& part = bucket.parts[i].mutable_grad();
    part = gradient_part(bucket, i);
    has_any = has_any || part.defined();
  }
  return has_any;
}

/// After the parameters of a bucket are gathered.
void finish(const ShardedBucket& bucket) {
  for (const auto i : bucket.optimized) {
    auto& part = bucket.parts[i].mutable_grad();
    if (!part.defined()) continue;
    part.reset();
    // Autograd must detect the change, also of elements that other ranks updated.
    bucket.slices()[i].parameter.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace

ShardedParameters::ShardedParameters(torch::optim::Optimizer& optimizer, Reducer& reducer,
                                     const Group& group)
    : Update(optimizer, reducer), group_(group) {
  const auto groups = optimizer_.param_groups().size();
  unsharded_.resize(groups);
  std::vector<ElementwiseOptimizer::Part> parts;
  std::unordered_map<const void*, std::pair<std::size_t, std::size_t>> places;  // bucket, slice
  for (const auto& of_bucket : reducer_.bucket_reducers()) {
    const auto& gradients = of_bucket.bucket;
    const auto own = shard_of(gradients.values(), group_);
    const auto numel = own.length() * static_cast<std::size_t>(group_.size());
    auto& bucket = buckets_.emplace_back(ShardedBucket{
        .reducer = &of_bucket,
        .own = own,
        .flat = group_.empty({static_cast<std::int64_t>(numel)}, gradients.values().scalar_type())
                    .zero_()});
    bucket.values = lay_out(gradients, bucket.flat);
    bucket.optimized_parts.resize(groups);
    for (const auto& slice : gradients.slices()) {
      const auto part = intersection(own, slice);
      places[slice.parameter.unsafeGetTensorImpl()] = {buckets_.size() - 1, bucket.parts.size()};
      bucket.parts.push_back(flat_part(bucket.flat, slice.offset + part.begin, part.length()));
    }
  }
  for (std::size_t g = 0; g < groups; ++g) {
    for (const auto& parameter : original_.emplace_back(optimizer_.param_groups()[g].params())) {
      const auto found = places.find(parameter.unsafeGetTensorImpl());
      if (found == places.end()) {
        unsharded_[g].push_back(parameter);
        parts.push_back({.part = parameter, .parameter = parameter});
        continue;
      }
      auto& bucket = buckets_[found->second.first];
      const auto slice = found->second.second;
      bucket.optimized.push_back(slice);
      bucket.optimized_parts[g].push_back(bucket.parts[slice]);
      parts.push_back({.part = bucket.parts[slice],
                       .parameter = parameter,
                       .begin = intersection(bucket.own, bucket.slices()[slice]).begin});
    }
  }
  all_or_none(group_, [&] { check_cuttable(optimizer_.state()); });
  cut(optimizer_.state());
  move_back();
  Instances<ShardedParameters>::all().list.push_back(this);
  try {
    set_parts(parts);
  } catch (...) {
    leave_buckets();
    throw;
  }
}

ShardedParameters::~ShardedParameters() {
  set_parts({});
  leave_buckets();
}

/// Copies parameters into memory of their own, and lists their state under them.
void ShardedParameters::leave_buckets() {
  std::erase(Instances<ShardedParameters>::all().list, this);
  const at::NoGradGuard no_grad;
  for (const auto& bucket : buckets_) {
    for (std::size_t i = 0; i < bucket.parts.size(); ++i) {
      const auto& parameter = bucket.slices()[i].parameter;
      auto state = take_state(optimizer_.state(), bucket.parts[i]);
      if (state == nullptr) continue;
      for (auto* tensor : tensors_of(*state)) {
        if (group_.size() > 1 || !tensor->defined()) continue;
        *tensor = alias(*tensor, static_cast<std::size_t>(tensor->storage_offset()), parameter);
      }
      optimizer_.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
    }
    for (std::size_t i = 0; i < bucket.values.size(); ++i)
      leave(bucket.slices()[i].parameter, bucket.values[i]);
  }
}

void ShardedParameters::set_parts(const std::vector<ElementwiseOptimizer::Part>& parts) const {
  if (auto* const elementwise = dynamic_cast<ElementwiseOptimizer*>(&optimizer_))
    elementwise->set_parts(parts);
}

/// Moves parameters back, with their current values, that the program has moved to other memory.
void ShardedParameters::move_back() const {
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

/// Throws: InvalidArgument when the optimizer's parameters are not those of the constructor.
void ShardedParameters::check_groups() const {
  const auto& groups = optimizer_.param_groups();
  const auto is_same = [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); };
  for (std::size_t g = 0; g < std::max(groups.size(), original_.size()); ++g) {
    const bool is_unchanged = g < groups.size() && g < original_.size() &&
                              std::ranges::equal(groups[g].params(), original_[g], is_same);
    if (is_unchanged) continue;
    throw InvalidArgument(
        concat("DistributedOptimizer: shard: got an optimizer whose parameter group ", g,
               " has changed, expected the parameters of its construction: construct the "
               "DistributedOptimizer after the last parameter is added"));
  }
}

void ShardedParameters::step() {
  const at::NoGradGuard no_grad;
  check_groups();
  move_back();
  // The failure of the world is the error below, and not the end of the other Works.
  std::vector<Work> works(buckets_.size());
  try {
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      auto& bucket = buckets_[b];
      if (!set_gradients(bucket)) continue;
      step_on(optimizer_, bucket.optimized_parts);
      const SourceScope of_bucket(group_.communicator(), reducer_.source_of_parameters(b));
      const auto own = flat_part(bucket.flat, bucket.own.begin, bucket.own.length());
      works[b] = group_.all_gather(bucket.flat, own);
    }
    if (!std::ranges::all_of(unsharded_, &std::vector<at::Tensor>::empty))
      step_on(optimizer_, unsharded_);
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      works[b].wait();
      finish(buckets_[b]);
    }
    release_gradients();
  } catch (const std::exception& error) {
    // Other ranks wait for this rank's parts, and some parameters are updated and some are not.
    group_.communicator().fail(concat("DistributedOptimizer: ", error.what()));
    throw;
  }
}

std::vector<at::Tensor> ShardedParameters::gradients() const {
  std::vector<at::Tensor> gradients;
  for (const auto& bucket : buckets_) {
    if (bucket.shard() == nullptr) continue;
    for (std::size_t i = 0; i < bucket.slices().size(); ++i) {
      const auto& gradient = bucket.shard()->gradient(i);
      const bool is_used = !bucket.slices()[i].parameter.grad().defined();  // as gradient_part()
      if (is_used && gradient.defined()) gradients.push_back(gradient);
    }
  }
  return gradients;
}

void ShardedParameters::release_gradients() const {
  for (const auto& bucket : buckets_) {
    if (bucket.shard() != nullptr) bucket.shard()->release();
  }
}

void ShardedParameters::zero_grad(bool set_to_none) const {
  // Other parts lie in the bucket's memory, which .grad() may use, and which zero_grad() has
  // zeroed.
  const bool zeroes = !set_to_none && divides_gradients();
  for (const auto& bucket : buckets_) {
    if (bucket.shard() == nullptr) continue;
    zeroes ? bucket.shard()->zero() : bucket.shard()->discard();
  }
}

}  // namespace lockstep::detail
