#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "comm/waiting.h"
#include "core/text.h"
#include "group/tensors.h"
#include "kernels/reduce.h"
#include "lockstep/error.h"
#include "parallel/agree.h"
#include "parallel/reducer/gradient.h"
#include "parallel/shared_memory.h"
#include "parallel/update/own_step.h"
#include "parallel/update/sharded_parameters.h"
#include "parallel/update/update.h"
#include "profile/group_statistics.h"
#include "sync/bucket_layout.h"

namespace lockstep::inline v0_2::detail {
namespace {

/// Bytes that are averaged and then used for the update while they are in the second-level cache.
constexpr std::size_t cached_bytes = 128 << 10;

at::Tensor flat_at(const void* data, std::size_t count, at::ScalarType dtype) {
  return at::from_blob(const_cast<void*>(data), {static_cast<std::int64_t>(count)}, dtype);
}

/// The ranks of this host. Ranks: all of the group.
Group sharing_group(const Group& group) {
  if (group.nodes() == 1) return group;
  auto local = group.local();
  all_or_none(group, [&] { check_shares_memory(local); });
  return local;
}

/// One copy of a model's parameters and optimizer state for all ranks of a host. On one host, each
/// rank averages its range of all ranks' gradients in place and updates that range of the
/// parameters. Means stay in the cache between the average and the update. On several hosts, each
/// rank updates its range with gradients that are averaged already. docs/design/gradients.md, "One
/// copy of the parameters for all ranks", has the steps.
class SharedUpdate final : public Update {
 public:
  /// Moves the parameters into shared memory.
  SharedUpdate(torch::optim::Optimizer& optimizer, Reducer& reducer, const Group& group)
      : Update(optimizer, reducer),
        world_(group),
        group_(sharing_group(group)),
        averages_gradients_(group_.size() == group.size()),
        step_(optimizer),
        elementwise_(dynamic_cast<ElementwiseOptimizer*>(&optimizer) == nullptr
                         ? step_
                         : dynamic_cast<ElementwiseOptimizer&>(optimizer)) {
    const at::NoGradGuard no_grad;
    for (auto& of_bucket : reducer_.bucket_reducers()) {
      auto& bucket = of_bucket.bucket;
      buckets_.push_back({.gradients = &bucket,
                          .begin = bytes_,
                          .own = shard_of(bucket.values(), group_),
                          .own_gradients = std::vector<Gradient>(bucket.slices().size())});
      bytes_ += round_up(bucket.values().nbytes(), slice_alignment);
    }
    if (averages_gradients_) exchange_addresses();
    const auto memory = shared_memory(group_, bytes_);
    for (auto& bucket : buckets_) {
      bucket.values = lay_out(bucket, memory);
      for (std::size_t i = 0; i < bucket.values.size(); ++i) {
        if (group_.rank() == 0) bucket.values[i].copy_(bucket.gradients->slices()[i].parameter);
      }
    }
    group_.barrier().wait();
    for (auto& bucket : buckets_) {
      for (std::size_t i = 0; i < bucket.values.size(); ++i) {
        at::Tensor parameter = bucket.gradients->slices()[i].parameter;
        parameter.set_data(bucket.values[i]);
      }
    }
  }

  /// Copies parameters and optimizer state into memory of this rank.
  ~SharedUpdate() override {
    const at::NoGradGuard no_grad;
    for (auto& bucket : buckets_) {
      for (std::size_t i = 0; i < bucket.values.size(); ++i) {
        const auto& parameter = bucket.gradients->slices()[i].parameter;
        leave(parameter, bucket.values[i]);
        if (bucket.state.empty() || !elementwise_.has(parameter)) continue;
        const auto state = elementwise_.state_of(parameter);
        for (std::size_t k = 0; k < std::min(state.size(), bucket.state.size()); ++k)
          leave(*state[k], bucket.state[k][i]);
      }
    }
  }

  Product product() const override { return averages_gradients_ ? Product::none : Product::mean; }

  using Update::step;
  /// Does not change .grad().
  /// Throws: InvalidArgument when a parameter no longer uses the shared memory.
  void step() override {
    const at::NoGradGuard no_grad;
    check_in_place();
    if (!mean_.defined()) mean_ = at::empty({static_cast<std::int64_t>(cached_bytes)}, at::kByte);
    const bool averages = reducer_.product() == Product::none;
    publish_gradients(averages);
    try {
      allocate_state();
      for (auto& bucket : buckets_) update(bucket, averages);
    } catch (const std::exception& error) {
      // Other ranks use the parameters, of which some are updated and some are not.
      world_.communicator().fail(concat("DistributedOptimizer: ", error.what()));
      throw;
    }
    // Before this barrier, other ranks read this rank's gradients and write its parameters.
    group_.barrier().wait();
  }

 private:
  /// One parameter's gradient on this rank.
  struct Gradient {
    const std::byte* values = nullptr;  ///< null if the optimizer must skip the parameter
    bool is_mean = false;               ///< values are already averaged
  };

  /// The parameters of one bucket, in the layout of its gradients.
  struct SharedBucket {
    Bucket* gradients;
    std::size_t begin;                            ///< of its bytes in a block
    ShardRange own;                               ///< elements that this rank updates
    std::vector<Gradient> own_gradients;          ///< per slice
    std::vector<std::byte*> rank_gradients = {};  ///< per rank, the memory of its bucket
    std::vector<at::Tensor> values = {};          ///< per slice, parameters in shared memory
    /// Per tensor of an optimizer's state and slice, that tensor in shared memory.
    std::vector<std::vector<at::Tensor>> state = {};
    /// Per slice that this step updates, the tensors of the optimizer's state.
    std::vector<std::vector<at::Tensor*>> own_state = {};
  };

  /// Exchanges the addresses of all ranks' buckets.
  void exchange_addresses() {
    auto& communicator = group_.communicator();
    std::vector<std::int64_t> places;
    for (const auto& bucket : buckets_) {
      const auto place = communicator.place_of(bucket.gradients->values().const_data_ptr());
      // An empty bucket has no memory.
      places.push_back(static_cast<std::int64_t>(place.value_or(0)));
    }
    std::vector<std::int64_t> all(places.size() * static_cast<std::size_t>(group_.size()));
    communicator.all_gather(places.data(), all.data(), places.size(), DType::i64).wait();
    for (std::size_t i = 0; i < all.size(); ++i) {
      buckets_[i % places.size()].rank_gradients.push_back(
          communicator.at_place(static_cast<std::uint64_t>(all[i])));
    }
  }

  /// Makes a tensor for each slice, over a block of bytes_.
  static std::vector<at::Tensor> lay_out(const SharedBucket& bucket, const at::Tensor& block) {
    const auto& like = bucket.gradients->values();
    const auto flat = flat_part(block.view(like.scalar_type()), bucket.begin / like.element_size(),
                                static_cast<std::size_t>(like.numel()));
    return detail::lay_out(*bucket.gradients, flat);
  }

  void check_in_place() const {
    for (const auto& bucket : buckets_) {
      for (std::size_t i = 0; i < bucket.values.size(); ++i) {
        const auto& [name, parameter, offset, values] = bucket.gradients->slices()[i];
        if (parameter.const_data_ptr() == bucket.values[i].const_data_ptr()) continue;
        throw invalid_in("DistributedOptimizer", world_, "parameter ", name,
                         " was moved to other memory, expected the memory that all ranks share: "
                         "change its values in place");
      }
    }
  }

  /// Whether this step updates a parameter. The same on every rank.
  bool updates(const SharedBucket& bucket, std::size_t slice) const {
    return bucket.own_gradients[slice].values != nullptr &&
           elementwise_.has(bucket.gradients->slices()[slice].parameter);
  }

  /// Allocates shared memory for the optimizer state, for as many tensors as a parameter has.
  void allocate_state() {
    std::size_t needed = 0;
    for (auto& bucket : buckets_) {
      bucket.own_state.assign(bucket.own_gradients.size(), {});
      for (std::size_t i = 0; i < bucket.own_state.size(); ++i) {
        if (!updates(bucket, i)) continue;
        bucket.own_state[i] = elementwise_.state_of(bucket.gradients->slices()[i].parameter);
        needed = std::max(needed, bucket.own_state[i].size());
      }
    }
    while (buckets_.front().state.size() < needed) {
      const auto memory = shared_memory(group_, bytes_);
      for (auto& bucket : buckets_) bucket.state.push_back(lay_out(bucket, memory));
    }
  }

  /// Moves a parameter's optimizer state into shared memory, and sets it to zero if there is none
  /// yet. Every rank writes its own range. Returns whether there was none.
  static bool prepare_state(SharedBucket& bucket, std::size_t slice) {
    const auto& of = bucket.gradients->slices()[slice];
    const auto [begin, end] = intersection(bucket.own, of);
    const auto size = static_cast<std::size_t>(of.parameter.element_size());
    const auto own = [&](const at::Tensor& of_parameter) {
      return std::span(memory_of(of_parameter), of_parameter.nbytes())
          .subspan(begin * size, (end - begin) * size);
    };
    bool is_first = false;
    for (std::size_t k = 0; k < bucket.own_state[slice].size(); ++k) {
      auto& tensor = *bucket.own_state[slice][k];
      const auto& shared = bucket.state[k][slice];
      if (!tensor.defined()) {
        is_first = is_first || k == 0;
        std::ranges::fill(own(shared), std::byte{});
      } else if (tensor.const_data_ptr() != shared.const_data_ptr()) {
        // A loaded state: every rank has all of it and copies its own range.
        std::ranges::copy(own(at::empty_like(shared).copy_(tensor)), own(shared).begin());
      }
      tensor = shared;
    }
    return is_first;
  }

  /// Copies this rank's gradient into its bucket, where all ranks can read it. This rank's own
  /// range is not copied if it can be read from .grad().
  static Gradient publish_gradient(const SharedBucket& bucket, std::size_t index, double factor) {
    const auto& slice = bucket.gradients->slices()[index];
    const auto& values = slice.values;
    const auto& gradient = slice.parameter.grad();
    // The factor must not change .grad(), nor anything that the program keeps.
    if (factor != 1 || !is_stored_in(gradient, values)) bucket.gradients->unshare(index);
    if (!gradient.defined()) {
      values.zero_();
      return {.values = memory_of(values)};
    }
    expect_copyable(gradient, slice);
    if (factor != 1 || values.numel() == 0 || gradient.strides() != values.strides() ||
        !has_values_in_memory(gradient)) {
      values.copy_(gradient);
      weigh(values, factor);
      return {.values = memory_of(values)};
    }
    if (!is_stored_in(gradient, values)) {
      const auto [begin, end] = intersection(bucket.own, slice);
      const auto size = static_cast<std::size_t>(values.element_size());
      auto* to = memory_of(values);
      std::memcpy(to, memory_of(gradient), begin * size);
      std::memcpy(to + end * size, memory_of(gradient) + end * size, values.nbytes() - end * size);
    }
    return {.values = memory_of(gradient)};
  }

  /// A gradient that is equal on every rank.
  static Gradient mean_gradient(const SharedBucket& bucket, std::size_t index) {
    if (!bucket.gradients->slices()[index].parameter.grad().defined()) return {};
    return {.values = publish_gradient(bucket, index, 1).values, .is_mean = true};
  }

  /// On return, all ranks have ended their backward and their gradients can be read.
  void publish_gradients(bool averages) {
    // Writes into the bucket must not count as changes of a gradient.
    const at::AutoDispatchBelowADInplaceOrView no_versions;
    const double factor = averages ? reducer_.begin_without_exchange() : 1;
    for (auto& bucket : buckets_) {
      for (std::size_t i = 0; i < bucket.own_gradients.size(); ++i) {
        bucket.own_gradients[i] =
            averages ? publish_gradient(bucket, i, factor) : mean_gradient(bucket, i);
      }
    }
    if (!averages) return group_.barrier().wait();
    auto changed = reducer_.end_without_exchange();
    for (auto& bucket : buckets_) {
      for (std::size_t i = 0; i < bucket.own_gradients.size(); ++i) {
        if (changed[i] >= changed_by_rank) continue;
        // A gradient that no rank has changed is used without averaging.
        bucket.own_gradients[i] = changed[i] == unchanged ? mean_gradient(bucket, i) : Gradient();
      }
      changed = changed.subspan(bucket.own_gradients.size());
    }
  }

  void update_slice(SharedBucket& bucket, std::size_t slice) {
    const auto& of = bucket.gradients->slices()[slice];
    const auto& own_gradient = bucket.own_gradients[slice];
    if (!updates(bucket, slice)) return;
    const bool is_first = prepare_state(bucket, slice);
    elementwise_.begin_update(of.parameter);
    const auto dtype = of.parameter.scalar_type();
    const auto size = static_cast<std::size_t>(of.parameter.element_size());
    const auto rank = static_cast<std::size_t>(group_.rank());
    std::vector<const std::byte*> inputs(bucket.rank_gradients.size());
    auto* mean = memory_of(mean_);
    const auto part = intersection(bucket.own, of);
    for (auto begin = part.begin; begin < part.end; begin += cached_bytes / size) {
      const auto count = std::min(part.end - begin, cached_bytes / size);
      const auto in = [&](const at::Tensor& tensor) {
        return flat_at(memory_of(tensor) + begin * size, count, dtype);
      };
      const std::byte* gradient = own_gradient.values + begin * size;
      if (!own_gradient.is_mean) {
        for (std::size_t r = 0; r < inputs.size(); ++r) {
          inputs[r] = r == rank ? gradient : bucket.rank_gradients[r] + (of.offset + begin) * size;
        }
        kernels::reduce(dtype_of(dtype, "update"), ReduceOp::avg, inputs, {{mean}}, count);
        gradient = mean;
      }
      std::vector<at::Tensor> state_in;
      for (std::size_t k = 0; k < bucket.own_state[slice].size(); ++k)
        state_in.push_back(in(bucket.state[k][slice]));
      elementwise_.update(of.parameter, {.values = in(bucket.values[slice]),
                                         .gradient = flat_at(gradient, count, dtype),
                                         .state = std::move(state_in),
                                         .is_first = is_first});
    }
    // Autograd must detect the change on every rank, also of ranges that other ranks wrote.
    of.parameter.unsafeGetTensorImpl()->bump_version();
  }

  void update(SharedBucket& bucket, bool averages) {
    const auto update_all = [&] {
      for (std::size_t i = 0; i < bucket.own_gradients.size(); ++i) update_slice(bucket, i);
    };
    if (!averages) return update_all();
    // Counts in the statistics as an all_reduce of the bucket.
    auto& statistics = GroupStatistics::of(group_.communicator());
    const auto bytes = bucket.gradients->values().nbytes();
    const DenseBytesScope dense_bytes_scope(statistics, bytes);
    const WorkTimer timer(
        statistics.count(Collective::all_reduce, static_cast<int>(bucket.gradients->index()), bytes)
            .working);
    update_all();
  }

  Group world_;  ///< the ranks that average
  Group group_;  ///< the ranks that share memory
  bool averages_gradients_;
  ElementwiseStep step_;  ///< unless the optimizer is an ElementwiseOptimizer itself
  ElementwiseOptimizer& elementwise_;
  std::vector<SharedBucket> buckets_;
  std::size_t bytes_ = 0;  ///< of all buckets
  at::Tensor mean_;        ///< mean of one chunk
};

}  // namespace

std::unique_ptr<Update> shared_update(torch::optim::Optimizer& optimizer, Reducer& reducer,
                                      const Group& group) {
  return std::make_unique<SharedUpdate>(optimizer, reducer, group);
}

}  // namespace lockstep::detail
