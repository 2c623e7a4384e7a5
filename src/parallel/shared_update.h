#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <vector>

#include "lockstep/distributed_optimizer.h"
#include "lockstep/group.h"
#include "parallel/reducer.h"

namespace lockstep::inline v0_2::detail {

/// Which gradients a shared update uses.
enum class UpdateGradients : bool {
  local,    ///< each rank's own: they are averaged on the way
  averaged  ///< the mean, on every rank
};

/// One copy of a model's parameters and of its optimizer's state, for all ranks of a host. Each
/// rank averages its part of all ranks' gradients where they lie, and updates that part for all.
/// The mean is never written to memory for the optimizer to read it again.
/// docs/design/gradients.md, "One copy for all ranks", lists the accesses of each rank.
class SharedUpdate {
 public:
  /// Moves the parameters into memory that the ranks share. They hold rank 0's values then.
  /// Ranks: all of the group. The reducer's parameters must be equal on all of them. Reducer and
  /// optimizer must outlive it.
  SharedUpdate(Reducer& reducer, const Group& group, ElementwiseOptimizer& optimizer);
  /// Gives each parameter, and what is remembered of it, memory of its own.
  ~SharedUpdate();
  SharedUpdate(const SharedUpdate&) = delete;
  SharedUpdate& operator=(const SharedUpdate&) = delete;

  /// The optimizer's step, by the gradients' mean. Gradients stay as they are. Ranks: all.
  /// Throws: InvalidArgument when a parameter has been given other memory.
  void step(UpdateGradients gradients);

 private:
  /// Elements of a bucket, or of a slice.
  struct Part {
    std::size_t begin;
    std::size_t end;
  };

  /// One parameter's gradient on this rank.
  struct Gradient {
    const std::byte* values = nullptr;  ///< null where the optimizer is not to look at it
    bool is_mean = false;               ///< it was averaged already
    at::Tensor kept = {};  ///< what lay in the bucket, where this rank's factor has changed it
  };

  /// One bucket's worth of parameters, laid out as its gradients are.
  struct SharedBucket {
    const Bucket* gradients;
    Part own;                               ///< what this rank updates
    std::vector<Gradient> found;            ///< of each slice, by this rank
    std::vector<std::byte*> of_ranks = {};  ///< of each rank, its gradients
    std::vector<at::Tensor> values = {};    ///< of each slice, over shared memory
    std::vector<at::Tensor> memory = {};    ///< the same; empty until something is remembered
  };

  static Part within(const Part& own, const Bucket::Slice& slice);
  void find_buckets();
  std::vector<at::Tensor> lay_out(SharedBucket& bucket, const at::Tensor& bytes,
                                  std::size_t& offset) const;
  void check_in_place() const;
  void make_memory();
  bool prepare_memory(SharedBucket& bucket, std::size_t slice);
  void find_gradients(UpdateGradients gradients);
  static Gradient mean_of(const Bucket::Slice& slice);
  static Gradient bring(const Bucket::Slice& slice, const Part& own, double factor);
  void average_and_update(SharedBucket& bucket);
  void update(SharedBucket& bucket);
  void update(SharedBucket& bucket, std::size_t slice);

  Reducer& reducer_;
  Group group_;
  ElementwiseOptimizer& optimizer_;
  std::vector<SharedBucket> buckets_;
  std::size_t bytes_ = 0;  ///< of all buckets
  at::Tensor mean_;        ///< a chunk's, on its way from the gradients to the update
};

}  // namespace lockstep::detail
