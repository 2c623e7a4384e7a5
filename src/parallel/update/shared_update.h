#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/distributed_optimizer.h"
#include "lockstep/group.h"
#include "parallel/buckets/bucket_memory.h"
#include "parallel/reducer/reducer.h"
#include "parallel/update/own_step.h"
#include "parallel/update/update.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep::inline v0_2::detail {

/// One copy of a model's parameters and optimizer state for all ranks of a host. On one host, each
/// rank averages its range of all ranks' gradients in place and updates that range of the
/// parameters. Means stay in the cache between the average and the update. On several hosts, each
/// rank updates its range with gradients that are averaged already. docs/design/gradients.md, "One
/// copy of the parameters for all ranks", has the steps.
class SharedUpdate final : public Update {
 public:
  /// Throws: InvalidArgument unless the optimizer can update parts of tensors.
  static void check(const torch::optim::Optimizer& optimizer);

  /// Moves the parameters into shared memory. Reducer and optimizer must outlive it. Ranks: all of
  /// the group, with equal parameters.
  SharedUpdate(Reducer& reducer, const Group& group, torch::optim::Optimizer& optimizer);
  /// Copies parameters and optimizer state into memory of this rank.
  ~SharedUpdate() override;

  /// All ranks are on one host.
  Product product() const override { return averages_gradients_ ? Product::none : Product::mean; }

  using Update::step;
  /// Does not change .grad().
  /// Throws: InvalidArgument when a parameter no longer uses the shared memory.
  void step(UpdateGradients gradients) override;

 private:
  /// One parameter's gradient on this rank.
  struct Gradient {
    const std::byte* values = nullptr;  ///< null if the optimizer must skip the parameter
    bool is_mean = false;               ///< values are already averaged
  };

  /// The parameters of one bucket, in the layout of its gradients.
  struct SharedBucket {
    Bucket* gradients;
    ShardRange own;                               ///< elements that this rank updates
    std::vector<Gradient> own_gradients;          ///< per slice
    std::vector<std::byte*> rank_gradients = {};  ///< per rank, the memory of its bucket
    std::vector<at::Tensor> values = {};          ///< per slice, parameters in shared memory
    /// Per tensor of an optimizer's state and slice, that tensor in shared memory.
    std::vector<std::vector<at::Tensor>> state = {};
    /// Per slice that this step updates, the tensors of the optimizer's state.
    std::vector<std::vector<at::Tensor*>> own_state = {};
  };

  /// A parameter's optimizer state in shared memory.
  struct State {
    std::vector<at::Tensor> tensors = {};
    bool is_first = false;  ///< there was none before this update
  };

  void exchange_addresses();
  static std::vector<at::Tensor> lay_out(const SharedBucket& bucket, const at::Tensor& bytes,
                                         std::size_t& offset);
  void check_in_place() const;
  bool updates(const SharedBucket& bucket, std::size_t slice) const;
  void allocate_state();
  State prepare_state(SharedBucket& bucket, std::size_t slice);
  void publish_gradients(UpdateGradients gradients);
  static Gradient mean_gradient(Bucket& bucket, std::size_t slice);
  static Gradient publish_gradient(const SharedBucket& bucket, std::size_t slice, double factor);
  void update(SharedBucket& bucket, UpdateGradients gradients);
  void update(SharedBucket& bucket, std::size_t slice);

  Reducer& reducer_;
  Group world_;  ///< the ranks that average
  Group group_;  ///< the ranks that share memory
  bool averages_gradients_;
  ElementwiseStep step_;  ///< unless the optimizer is an ElementwiseOptimizer itself
  ElementwiseOptimizer& optimizer_;
  std::vector<SharedBucket> buckets_;
  std::size_t bytes_ = 0;  ///< of all buckets
  at::Tensor mean_;        ///< mean of one chunk
};

}  // namespace lockstep::detail
