#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <unordered_map>
#include <vector>

#include "comm/communicator.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "parallel/reducer/gradient.h"
#include "parallel/update/own_step.h"
#include "parallel/update/sharded_parameters.h"
#include "parallel/update/update.h"

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

/// The update of DataParallelOptions::shard. During step(), the optimizer's parameters are the
/// parts of the buckets that this rank updates, so it keeps state for these parts only. The ranks
/// gather each bucket's parameters while the optimizer updates the next one.
class ShardedUpdate final : public Update {
 public:
  /// Moves the parameters into flat tensors.
  ShardedUpdate(torch::optim::Optimizer& optimizer, Reducer& reducer, const Group& group)
      : optimizer_(optimizer),
        reducer_(reducer),
        parameters_(reducer.bucket_reducers(), group, optimizer) {
    for (const auto& list : optimizer.param_groups()) original_.push_back(list.params());
    struct Place {
      std::size_t bucket;
      std::size_t slice;
    };
    std::unordered_map<const void*, Place> places;
    const auto buckets = parameters_.buckets();
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      const auto slices = buckets[b].slices();
      for (std::size_t i = 0; i < slices.size(); ++i)
        places[slices[i].parameter.unsafeGetTensorImpl()] = {.bucket = b, .slice = i};
    }
    const auto groups = original_.size();
    whole_.resize(groups);
    calls_.resize(buckets.size());
    for (auto& call : calls_) call.parts.resize(groups);
    std::vector<ElementwiseOptimizer::Part> parts;
    for (std::size_t g = 0; g < groups; ++g) {
      for (const auto& parameter : original_[g]) {
        const auto found = places.find(parameter.unsafeGetTensorImpl());
        if (found == places.end()) {
          whole_[g].push_back(parameter);
          parts.push_back({.part = parameter, .parameter = parameter});
          continue;
        }
        const auto [bucket, slice] = found->second;
        calls_[bucket].parts[g].push_back(buckets[bucket].parts[slice]);
        calls_[bucket].slices.push_back(slice);
        const auto range = intersection(buckets[bucket].own, buckets[bucket].slices()[slice]);
        parts.push_back(
            {.part = buckets[bucket].parts[slice], .parameter = parameter, .begin = range.begin});
      }
    }
    set_parts(parts);
  }

  ~ShardedUpdate() override { set_parts({}); }

  Product product() const override { return Product::part; }

  using Update::step;
  /// Throws: InvalidArgument when the optimizer's parameters are not those of the constructor.
  void step(UpdateGradients /*gradients*/) override {
    const at::NoGradGuard no_grad;
    check_groups();
    parameters_.move_back();
    try {
      std::vector<Work> works(calls_.size());
      for (std::size_t b = 0; b < calls_.size(); ++b) {
        if (!set_gradients(b)) continue;
        step_on(optimizer_, calls_[b].parts);
        const SourceScope of_bucket(parameters_.group().communicator(),
                                    reducer_.source_of_parameters(b));
        works[b] = parameters_.gather(parameters_.buckets()[b]);
      }
      if (!std::ranges::all_of(whole_, &std::vector<at::Tensor>::empty))
        step_on(optimizer_, whole_);
      for (std::size_t b = 0; b < calls_.size(); ++b) {
        works[b].wait();
        finish(b);
      }
      parameters_.discard_gradients();
    } catch (const std::exception& error) {
      // Other ranks wait for this rank's parts, and some parameters are updated and some are not.
      parameters_.group().communicator().fail(concat("DistributedOptimizer: ", error.what()));
      throw;
    }
  }

 private:
  /// One call of the optimizer's step, for the parameters of one bucket.
  struct Call {
    ParameterLists parts;             ///< what the optimizer updates
    std::vector<std::size_t> slices;  ///< of the bucket, that the optimizer has
  };

  void set_parts(const std::vector<ElementwiseOptimizer::Part>& parts) {
    if (auto* const elementwise = dynamic_cast<ElementwiseOptimizer*>(&optimizer_))
      elementwise->set_parts(parts);
  }

  void check_groups() const {
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

  /// Gives the parts of a bucket their part of the gradients. Returns whether there is any.
  bool set_gradients(std::size_t index) {
    const auto& bucket = parameters_.buckets()[index];
    bool has_any = false;
    for (const auto i : calls_[index].slices) {
      auto& part = bucket.parts[i].mutable_grad();
      part = gradient_part(bucket, i);
      has_any = has_any || part.defined();
    }
    return has_any;
  }

  /// After the parameters of a bucket are gathered.
  void finish(std::size_t index) {
    const auto& bucket = parameters_.buckets()[index];
    for (const auto i : calls_[index].slices) {
      auto& part = bucket.parts[i].mutable_grad();
      if (!part.defined()) continue;
      part.reset();
      // Autograd must detect the change, also of elements that other ranks updated.
      bucket.slices()[i].parameter.unsafeGetTensorImpl()->bump_version();
    }
  }

  torch::optim::Optimizer& optimizer_;
  Reducer& reducer_;
  ShardedParameters parameters_;
  ParameterLists original_;  ///< the optimizer's parameters at construction
  std::vector<Call> calls_;  ///< per bucket
  ParameterLists whole_;     ///< parameters in no bucket, which every rank updates
};

}  // namespace

std::unique_ptr<Update> sharded_update(torch::optim::Optimizer& optimizer, Reducer& reducer,
                                       const Group& group) {
  return std::make_unique<ShardedUpdate>(optimizer, reducer, group);
}

}  // namespace lockstep::detail
