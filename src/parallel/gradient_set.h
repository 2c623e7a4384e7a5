#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/distributed_optimizer.h"
#include "lockstep/group.h"
#include "parallel/bucket_reducers.h"
#include "parallel/consistency_check.h"
#include "parallel/gradient.h"
#include "parallel/replicated_model.h"
#include "parallel/step_agreement.h"

namespace lockstep::inline v0_2::detail {

/// The gradients of all parameters, bucket after bucket: what this rank contributes to an exchange,
/// and what becomes of .grad() when it is over.
class GradientSet {
 public:
  /// The reducers must outlive it.
  GradientSet(BucketReducers& reducers, const Group& group);
  /// Gives the gradients that lie in buckets memory of their own.
  ~GradientSet();
  GradientSet(const GradientSet&) = delete;
  GradientSet& operator=(const GradientSet&) = delete;

  std::size_t size() const { return members_.size(); }
  std::vector<NamedTensor> parameters() const;
  const std::string& name_of(std::size_t index) const { return members_[index].slice->name; }
  std::size_t bucket_of(std::size_t index) const { return members_[index].bucket; }
  /// Parameters of a bucket.
  std::size_t count_in(std::size_t bucket) const { return first_[bucket + 1] - first_[bucket]; }

  /// Parameters that no optimizer steps, and whose gradients may therefore add up.
  void let_accumulate(const std::function<bool(const at::Tensor&)>& is_stepped);

  /// A backward has added incoming to the parameter's gradient.
  /// Throws: InvalidArgument when it was added to a mean that must not be averaged again.
  void take(std::size_t index, const at::Tensor& incoming);
  /// The parameter's accumulator was replaced, so that no hook has reported its backwards.
  void take_unreported(std::size_t index);
  /// Moves the gradient into the parameter's slice, and sets .grad() to the slice.
  /// Throws: InvalidArgument for a gradient that the slice cannot hold.
  void move_into_bucket(std::size_t index);

  void begin_backward();
  /// Puts this rank's contribution to an exchange into a bucket.
  void prepare(std::size_t bucket);
  /// Sets .grad() of every parameter that some rank has changed to its mean, and leaves the others
  /// as they were. After the exchange of a step and the maximum of the participation flags.
  /// joined: some ranks have joined the exchange in step().
  void settle(std::int64_t step, bool joined);

  /// A byte a parameter, "this rank has changed its gradient", then the bytes of the consistency
  /// check: to be reduced to the maximum over ranks.
  const at::Tensor& flags() const { return flags_; }
  std::span<std::uint8_t, ConsistencyCheck::bytes> check_bytes() const;
  std::span<const std::uint8_t> changed() const { return {flags_of_, members_.size()}; }

  /// This rank's intent for a step, which follows from its gradients.
  StepIntent intent(std::int64_t step) const;
  /// Whether some gradient has lost the mean of the last exchange.
  bool has_lost_mean() const;
  /// Ranks hold different means, or have edited gradients in different ways: takes these for local
  /// ones.
  /// Throws: InvalidArgument, on every rank, when one is a mean that must not be averaged again.
  void take_differing(const StepPlan& plan, const Group& group);
  /// For a step after exchanges that some ranks have joined in step(): those drop the means, for
  /// which factor is 0. The others take theirs for local gradients, times the factor.
  void follow(double factor);
  void forget_joined();

  /// The same as prepare() and settle() for an update that ranks share, which leaves the gradients
  /// this rank's own.
  void flag_local();
  void end_without_exchange();

 private:
  struct Member {
    std::size_t bucket;
    const Bucket::Slice* slice;
    GradientRecord record = {};
    bool in_graph = false;        ///< what its gradient was made of could be differentiated again
    bool joined = false;          ///< averaged by an exchange that some ranks joined in step()
    bool may_accumulate = false;  ///< no optimizer steps it: means may be added to
    at::Tensor kept = {};  ///< the gradient as it was, should it turn out that no rank changed it
    MeanProbe mean = {};   ///< of the last mean, where an exchange keeps a residual
  };

  void prepare_one(std::size_t index);
  GradientState state_of(const Member& member) const;
  bool is_final_mean(const Member& member) const;

  BucketReducers& reducers_;
  std::vector<Member> members_;     ///< bucket after bucket
  std::vector<std::size_t> first_;  ///< of each bucket; the last is their number
  at::Tensor flags_;
  std::uint8_t* flags_of_ = nullptr;  ///< its memory
};

}  // namespace lockstep::detail
