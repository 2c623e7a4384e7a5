#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/exchange.h"
#include "lockstep/group.h"
#include "lockstep/work.h"

namespace lockstep::inline v0_2::detail {

/// Throws InvalidArgument about a parameter.
[[noreturn]] void refuse(const std::string& name, std::string_view why);

/// Whether the gradient uses the memory of the slice. Module::zero_grad(false) replaces the tensor
/// but not its memory.
bool is_stored_in(const at::Tensor& gradient, const at::Tensor& values);

/// Whether both are dense, on the CPU, with elements of one dtype at the same places in memory.
bool has_places_of(const at::Tensor& tensor, const at::Tensor& other);

/// Copies each source to the tensor at its place, of the same sizes and device. On a GPU it takes a
/// few kernels for all of them, where the strides of the two are equal. Changes no versions.
void copy_each(std::span<const at::Tensor> tensors, std::span<const at::Tensor> sources);

/// Lets a tensor, which its last owner may drop, keep its memory until the device has read it.
void keep_for_current_stream(const at::Tensor& tensor);

/// Copies a gradient that the program, or the caller, may drop before a device has copied it.
void copy_into(const at::Tensor& values, const at::Tensor& gradient);

/// The mean of a gradient that was computed with create_graph. The mean itself has no graph. It
/// requires a gradient, so that a backward that reaches it raises InvalidArgument instead of
/// treating it as a constant. Shares memory with values.
at::Tensor without_graph(const at::Tensor& values, const std::string& parameter);

/// Multiplies values by the weight factor of a rank.
void weigh(const at::Tensor& values, double factor);

/// Throws: InvalidArgument when the gradient, which is dense, cannot be copied to the slice.
void expect_copyable(const at::Tensor& gradient, const Bucket::Slice& slice);

/// State of a parameter's gradient on one rank. docs/design/gradients.md has the transitions.
enum class GradientState : std::uint8_t {
  none,              ///< undefined; no mean of an exchange was in it
  assigned,          ///< set by the program; no mean was in it
  averaged,          ///< the mean of the last exchange, unchanged
  edited,            ///< a mean that the program has changed since: clipped, zeroed, dropped
  local,             ///< changed since by a backward of this rank
  local_after_edit,  ///< the same, after the program had changed the mean
  local_after_drop,  ///< the same, after the program had dropped or zeroed it
};

/// Tracks the GradientState of one parameter on this rank. It is derived from the gradient's memory
/// and version, so it reflects every change that a program makes between two exchanges.
class GradientRecord {
 public:
  /// of: the parameter's slice of its bucket, which must outlive the record.
  explicit GradientRecord(const Bucket::Slice& of) : slice(&of) {}

  const at::Tensor& gradient() const { return slice->parameter.grad(); }

  /// Call before a backward adds to the gradient.
  void before_backward() { had_gradient_ = gradient().defined(); }
  /// Call after a backward has added incoming, if it is known, to the gradient.
  void add_backward(const at::Tensor& incoming);
  /// Treats the gradient as changed by a backward.
  void set_local() { state_ = GradientState::local; }
  bool is_local() const { return state_ >= GradientState::local; }

  /// Call when the slice holds the mean of an exchange.
  void set_averaged();
  /// Takes one in-place change of the mean as a part of it.
  void keep_average();
  /// Call after an exchange that did not write the gradient.
  void set_unchanged();
  /// Call after a step that left this rank's own gradient in place.
  void set_not_averaged() { state_ = GradientState::none; }

  GradientState state() const;

  /// Whether the gradient is the mean, which has changed in place so many times since.
  bool is_untouched(std::int64_t additions = 0) const;

  const Bucket::Slice* slice;

 private:
  /// As the last call left it: not assigned or edited.
  GradientState state_ = GradientState::none;
  std::int64_t version_ = 0;   ///< autograd version of the values when they were averaged
  bool had_gradient_ = false;  ///< before the backward that adds to it
};

/// The factor with which this rank contributes the last mean to the next exchange. Used with
/// Shard::gradients: each rank has a part of the mean, and .grad() is undefined. The factor becomes
/// 0 when the program sets the gradient, which takes the place of the mean.
class PartRecord {
 public:
  /// Call before a backward adds to the gradient, and before its exchange.
  void note_before_change(const GradientRecord& record) {
    if (is_assigned(record)) factor_ = 0;
  }
  /// Call after a backward has added to the gradient.
  void note_backward(const GradientRecord& record);
  /// Whether the program has set the gradient since the last exchange or backward.
  bool is_assigned(const GradientRecord& record) const;

  double factor() const { return factor_; }
  void set_factor(double factor) { factor_ = factor; }

 private:
  double factor_ = 1;
  /// In which the last backward has left the gradient. An address might be another tensor's now.
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> memory_;
};

/// The participation flag of a parameter. The largest of all ranks counts.
enum GradientFlag : std::uint8_t {
  unchanged,
  changed_without_weight,  ///< by ranks of weight 0 only
  changed_by_rank,
  not_finite,    ///< changed, with NaN or Inf: FiniteCheck
  wrong_layout,  ///< changed, to a sparse gradient that its bucket lacks
  replaced       ///< unchanged: the model uses another tensor in its place
};

/// Whether a rank that counts has a gradient. The largest of all ranks counts.
enum GradientPresence : std::uint8_t {
  absent,
  present,
  replaces_part  ///< in place of the last mean, of which the ranks have parts: PartRecord
};

/// Finds NaN and Inf in each rank's own gradients (DataParallelOptions::check_finite). The
/// participation flags tell the other ranks.
class FiniteCheck {
 public:
  explicit FiniteCheck(bool enabled) : enabled_(enabled) {}
  bool enabled() const { return enabled_; }

  /// Sets the flag if the dense values are not finite; for values on a device, complete() does. The
  /// flag must stay in place until then.
  void test(const at::Tensor& values, std::uint8_t& flag);
  /// Call before the all_reduce of the flags. Waits for the device.
  void complete(std::span<const std::uint8_t> flags);
  /// After it: an InvalidArgument, the same on every rank, if a flag is not_finite; else null.
  /// Replaces these flags by changed_by_rank.
  /// Ranks: all of the group, with the same flags.
  std::exception_ptr take_error(std::span<std::uint8_t> flags,
                                const std::function<std::string(std::size_t flag)>& name_of,
                                const Group& group);

 private:
  bool enabled_;
  std::vector<std::uint8_t> own_flags_;  ///< this rank's, of the last exchange
  std::vector<std::uint8_t*> tested_;    ///< flags of gradients on a device
  std::vector<at::Tensor> magnitudes_;   ///< the largest magnitude in each of these
};

/// A digest of some elements of a mean. It detects clip_grad_norm_(), which scales all elements
/// without a change of the gradient's version. 0 for a mean on a device.
std::uint64_t digest_of_mean(const at::Tensor& mean);

/// The ranks that count in an exchange: all, or those with a weight above 0.
struct CountedRanks {
  int first = 0;
  int number;
  bool has_own = true;  ///< this rank is one of them
};

/// The weights of all ranks' gradients at the next exchange.
class Weights {
 public:
  explicit Weights(const Group& group);

  /// Begins the all_gather of the weights. Blocks only if weights were set since the last exchange.
  /// Ranks: all of the group.
  void set(double weight);

  /// The factor w_r · N ÷ Σ w of this rank's gradients, which makes their mean over ranks a
  /// weighted mean. Exactly 1 when all weights are equal or none were set. Clears the weights.
  /// Throws: as check().
  double take_factor();
  /// The same, and determines counted() from the weights that were set. Without any, all ranks
  /// count in the first exchange of a step, and those of the exchange before in a further one.
  /// Throws: as check().
  double begin_exchange(bool is_first);
  const CountedRanks& counted() const { return counted_; }
  /// Whether weights were set that no exchange has taken.
  bool are_set() const { return are_set_; }
  /// Whether this rank has set the weight 0 for the next exchange.
  bool is_own_zero() const;

  /// Throws: InvalidArgument, on every rank, for weights that were set after the last exchange of
  /// this step. Clears them then.
  void refuse_late();
  /// Drops weights that no exchange of the step has taken.
  void end_step();

  /// Throws: InvalidArgument, on every rank, when a weight is negative or not finite, when a rank
  /// has set two different ones, or all are zero. Clears the weights then.
  void check();

 private:
  /// The weights that a rank has set since the last exchange.
  struct OfRank {
    double first;
    double other;  ///< the latest that differs from the first; else the first
  };

  std::span<const OfRank> all() const;

  Group group_;
  at::Tensor mine_;
  at::Tensor all_;
  Work work_;
  CountedRanks counted_;
  bool are_set_ = false;
  bool has_exchanged_ = false;  ///< an exchange of this step has begun
};

}  // namespace lockstep::detail
