#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "lockstep/group.h"
#include "lockstep/model_view.h"
#include "parallel/agree.h"
#include "parallel/buckets/bucket_reducers.h"
#include "parallel/reducer/consistency_check.h"
#include "parallel/reducer/gradient.h"
#include "parallel/reducer/sparse_gradients.h"

namespace lockstep::inline v0_2::detail {

/// How the program has changed the last mean of some gradient.
enum class LostMean : std::uint8_t { none, changed, dropped };

/// Of the loss that a rank has passed to backward_and_update(): whether it has a graph.
enum class LossGraph : std::uint8_t { no_loss, none, some };

/// The state of one rank's gradients. The step agreement makes it the state of all ranks: the
/// maximum of each byte. So a flag is set if some rank has set it.
struct StepIntent {
  Compared<std::uint64_t> means{0};    ///< digest of the gradients that are GradientState::averaged
  Compared<std::uint64_t> edited{0};   ///< digest of the gradients that are GradientState::edited
  Compared<std::uint32_t> step{0};     ///< steps of this optimizer so far
  Compared<std::uint32_t> options{0};  ///< in step(): digest of the options of a divided update
  std::uint8_t in_backward = 0;        ///< in a backward: place_of(); else 0
  std::uint8_t in_step = 0;            ///< the same in step(), to take part in others' backward
  std::uint8_t has_followed = 0;       ///< this step() has taken part in the exchange of a backward
  std::uint8_t has_local = 0;          ///< a gradient is GradientState::local
  LostMean lost_mean = LostMean::none;
  std::uint8_t holds_mean = 0;          ///< this rank has the last mean; in a backward: its part
  std::uint8_t has_final_mean = 0;      ///< an averaged gradient must not be averaged again
  std::uint8_t has_edited_mean = 0;     ///< an edited gradient is a mean that must not be
  std::uint8_t has_own_steps = 0;       ///< in a backward: OwnStepCheck has found steps
  LossGraph loss = LossGraph::no_loss;  ///< in step()
  std::array<std::uint8_t, 6> padding = {};

  /// Of in_backward: the exchange has the weights of the one before, in the same backward.
  static constexpr std::uint8_t keeps_weights = 4;

  static std::uint8_t place_of(Product product, bool keeps = false) {
    return static_cast<std::uint8_t>(1 + static_cast<int>(product) + (keeps ? keeps_weights : 0));
  }
  /// Whether a backward without the last mean meets one with it, or a step().
  bool mixes_means() const {
    return in_backward != 0 &&
           ((in_step != 0 && has_followed != 0 && lost_mean != LostMean::none) ||
            (holds_mean != 0 && lost_mean == LostMean::dropped));
  }
  /// Whether some rank has a loss, none has one with a graph, and no gradient is to be used.
  bool lacks_graph() const {
    return loss == LossGraph::none && has_local == 0 && holds_mean == 0 && means.value == 0 &&
           edited.value == 0;
  }
  /// That of the ranks in a backward. Where no rank runs one, part if some rank has it.
  Product product() const {
    const auto place = (in_backward != 0 ? in_backward : in_step) % keeps_weights;
    return static_cast<Product>(place == 0 ? 0 : place - 1);
  }
};
static_assert(sizeof(StepIntent) == 64);

/// It begins every exchange of a DistributedOptimizer, in a backward and in step(). A rank without
/// a backward thereby takes part in the exchange of the other ranks' backward. step() averages
/// gradients if they are local on any rank.
using StepAgreement = MaxOverRanks<StepIntent>;

/// The gradients of all parameters, bucket after bucket, then the sparse ones. It writes this
/// rank's contribution to an exchange into the buckets, and sets .grad() after the exchange.
class GradientSet {
 public:
  /// The reducers and the sparse gradients must outlive it. check_finite: refuse gradients with NaN
  /// or Inf.
  GradientSet(BucketReducers& reducers, SparseGradients& sparse, const Group& group,
              bool check_finite);
  /// Moves gradients out of the buckets, so that they outlive them.
  ~GradientSet();
  GradientSet(const GradientSet&) = delete;
  GradientSet& operator=(const GradientSet&) = delete;

  std::size_t size() const { return members_.size(); }
  std::vector<NamedTensor> parameters() const;
  const std::string& name_of(std::size_t index) const { return members_[index].slice->name; }
  /// Whether the parameter is in no bucket, because it was declared to have sparse gradients.
  bool is_sparse(std::size_t index) const { return members_[index].is_sparse; }
  std::size_t bucket_of(std::size_t index) const { return members_[index].bucket; }

  /// Determines whose means the step agreement regards. others_accumulate: whether backwards may
  /// add to the means of all other parameters.
  void set_optimized(const IsOptimized& is_optimized, bool others_accumulate);

  /// Call before a backward adds to the parameter's gradient.
  void before_backward(std::size_t index);
  /// Call after a backward has added incoming to the parameter's gradient.
  /// Throws: InvalidArgument when it was added to a mean that must not be averaged again.
  void add_backward(std::size_t index, const at::Tensor& incoming);
  /// Call when the parameter's accumulator was replaced: no hook has reported its backwards.
  void add_unreported_backwards(std::size_t index);
  /// Moves the gradient into the parameter's slice, and sets .grad() to the slice. Leaves a sparse
  /// gradient where it is: take_error() reports it on every rank.
  /// Throws: InvalidArgument for a gradient that the slice cannot hold.
  void move_into_bucket(std::size_t index);
  /// The same for all gradients of a bucket on a device that a backward has changed. Runs on the
  /// current stream, which must come after those of the gradients.
  void move_all_into(std::size_t bucket);

  void begin_backward();
  /// Writes this rank's contribution to an exchange into a bucket. factor is the weight factor of
  /// this rank, by which the caller multiplies the values. With 1 they may be a gradient's own
  /// memory.
  void prepare(std::size_t bucket, double factor);
  /// The same for the sparse gradients; factor is the weight factor of this rank.
  void prepare_sparse(double factor);
  /// Sets .grad() to the mean for every parameter whose gradient some rank has changed, and
  /// restores the others. Call after the exchange of a step and the all_reduce of the flags.
  /// some_in_step: some ranks took part in the exchange from their step().
  void finish_exchange(std::int64_t step, bool some_in_step);

  /// The all_reduce of the participation flags compares these between ranks.
  struct Checks {
    Compared<std::uint64_t> parameters;  ///< ConsistencyCheck; options if nothing is exchanged
    Compared<std::uint64_t> positions;   ///< PositionCheck
  };

  /// The participation flags: one byte per parameter, whether this rank has changed its gradient.
  /// Then one byte per parameter, whether this rank counts and has a gradient (GradientPresence),
  /// and the checks. The Reducer takes their maximum over ranks.
  const at::Tensor& flags() const { return flags_; }
  void set_checks(const Checks& own) { std::memcpy(flag_bytes_ + 2 * size(), &own, sizeof own); }
  Checks checks() const {
    Checks all;
    std::memcpy(static_cast<void*>(&all), flag_bytes_ + 2 * size(), sizeof all);
    return all;
  }
  /// Call before that all_reduce. factor is the weight factor of this rank.
  void complete_flags(double factor);
  /// Call after it. If ranks of weight 0 alone have changed a gradient that another rank has, it
  /// counts as changed: the other ranks' mean is its value on every rank.
  void count_unchanged();
  /// Call after the same all_reduce. Determines the factor by which each earlier mean stays if the
  /// ranks have parts of it. It is the share of the ranks that have not set a gradient in its
  /// place. factor: the weight factor of this rank. Ranks: all of the group.
  void agree_on_part_factors(double factor, const Group& group);
  std::span<const std::uint8_t> changed() const { return {flag_bytes_, members_.size()}; }

  /// The flags of the parameters with sparse gradients.
  std::span<std::uint8_t> sparse_changed() const {
    return {flag_bytes_ + first_.back(), members_.size() - first_.back()};
  }
  bool checks_finite() const { return finite_check_.enabled(); }
  /// After the all_reduce of the flags: an InvalidArgument, the same on every rank, if some rank
  /// has a sparse gradient of a parameter that is in a bucket, has replaced a parameter, or has a
  /// gradient that is not finite; else null. Clears the flags of these parameters. Ranks: all.
  std::exception_ptr take_error(std::int64_t step, const Group& group);

  /// Whether a backward of this rank has changed the gradient since the last exchange.
  bool is_local(std::size_t index) const { return members_[index].is_local(); }
  /// Sets the flag of a parameter that the program has replaced on this rank.
  void flag_replaced(std::size_t index);
  /// The InvalidArgument about it.
  std::exception_ptr replaced_error(std::size_t index, const Group& group) const;

  /// This rank's intent for a step, derived from its gradients.
  StepIntent intent(std::int64_t step) const;
  /// StepIntent::lost_mean and holds_mean of the parameters that the attached optimizer updates.
  LostMean lost_mean() const;
  bool holds_mean() const;
  /// Whether this rank has its part of a mean that no step has used and zero_grad(false) has not
  /// made zero.
  bool has_parts() const;
  /// Marks gradients that differ between ranks as local, so that they are averaged again.
  /// Throws: InvalidArgument, on every rank, when one is a mean that must not be averaged again.
  void mark_differing_as_local(const StepIntent& all, const Group& group);
  /// For a step after exchanges in which some ranks took part from step(). These pass the factor 0
  /// and drop the means. The others multiply theirs by the factor and mark them as local.
  void rescale_means_from_step(double factor);
  void forget_means_from_step() { from_step_.clear(); }
  /// Call at the end of a step.
  void end_step() { has_got_parts_ = false; }
  /// Takes one in-place change of each mean as a part of it.
  void keep_averages();

  /// Sets the flags of a bucket whose gradients this step does not exchange.
  void set_flags(std::size_t bucket, double factor);
  /// The counterpart of finish_exchange() for SharedUpdate, which does not change .grad().
  void end_without_exchange();

 private:
  struct Member : GradientRecord {
    std::size_t bucket;
    bool is_sparse = false;       ///< the slice is that of SparseGradients
    bool is_optimized = true;     ///< the attached optimizer updates it
    bool may_accumulate = false;  ///< backwards may add to its mean
    at::Tensor saved = {};  ///< the gradient before the exchange, restored if no rank changed it
    MeanProbe mean = {};    ///< of the last mean, if the exchange has a residual
    PartRecord part = {};   ///< of the last mean, if the ranks have parts of it
  };

  void unshare(std::size_t index);
  at::Tensor replace_by_slice(std::size_t index);
  void prepare_one(std::size_t index, bool keeps_values);
  void drop_not_finite(std::size_t bucket);
  std::exception_ptr layout_error(std::size_t index, const Group& group) const;
  SyncTarget target(const Member& member, std::int64_t step) const;
  bool has_residual(const Member& member) const;
  bool has_part(std::size_t index) const;
  void move_in(const Member& member, const at::Tensor& gradient, bool keeps_values);
  void set_mean(std::size_t index);
  void restore(std::size_t index);
  bool is_final_mean(const Member& member) const;

  BucketReducers& reducers_;
  SparseGradients& sparse_;
  FiniteCheck finite_check_;
  std::vector<Member> members_;  ///< bucket after bucket, then those with sparse gradients
  /// Index of each bucket's first member, then that of the first with sparse gradients.
  std::vector<std::size_t> first_;
  /// Members whose gradients were computed with create_graph, until the end of their exchange.
  std::set<std::size_t> with_graph_;
  /// Members whose means come from an exchange in which ranks took part from step().
  std::set<std::size_t> from_step_;
  /// Per parameter, during an exchange: the result of agree_on_part_factors(). Empty: all are 1.
  std::vector<double> part_factors_;
  bool has_got_parts_ = false;  ///< an exchange of this step gave parts of means
  at::Tensor flags_;
  std::uint8_t* flag_bytes_ = nullptr;  ///< the memory of flags_
};

}  // namespace lockstep::detail
