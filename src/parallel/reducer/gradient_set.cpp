#include "parallel/reducer/gradient_set.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <exception>
#include <string>
#include <utility>

#include "core/numeric/digest.h"
#include "core/text.h"
#include "group/tensors.h"
#include "lockstep/error.h"
#include "parallel/buckets/bucket_memory.h"
#include "parallel/reducer/gradient.h"
#include "sync/bucket_layout.h"

namespace lockstep::inline v0_2::detail {

GradientSet::GradientSet(BucketReducers& reducers, SparseGradients& sparse, const Group& group,
                         bool check_finite)
    : reducers_(reducers), sparse_(sparse), finite_check_(check_finite) {
  for (std::size_t bucket = 0; bucket < reducers.size(); ++bucket) {
    first_.push_back(members_.size());
    for (const auto& slice : reducers[bucket].bucket.slices()) {
      members_.push_back({GradientRecord(slice), bucket});
    }
  }
  first_.push_back(members_.size());
  for (std::size_t i = 0; i < sparse.size(); ++i) {
    members_.push_back({GradientRecord(sparse.slice(i)), reducers.size() + i, true});
  }
  flags_ = group.host().empty({static_cast<std::int64_t>(2 * members_.size() + sizeof(Checks))},
                              at::kByte);
  flag_bytes_ = flags_.data_ptr<std::uint8_t>();
}

GradientSet::~GradientSet() {
  for (std::size_t i = 0; i < first_.back(); ++i) {
    try {
      unshare(i);
    } catch (const std::exception&) {
      // Memory is short: the gradient stays in the bucket and keeps its memory alive.
    }
  }
}

/// Lets all tensors over a parameter's slice, but the slice's own, keep its values.
void GradientSet::unshare(std::size_t index) {
  const auto bucket = members_[index].bucket;
  reducers_[bucket].bucket.unshare(index - first_[bucket]);
}

std::vector<NamedTensor> GradientSet::parameters() const {
  std::vector<NamedTensor> parameters;
  for (const auto& member : members_) {
    parameters.push_back({.name = member.slice->name, .tensor = member.slice->parameter});
  }
  return parameters;
}

void GradientSet::set_optimized(const IsOptimized& is_optimized, bool others_accumulate) {
  for (auto& member : members_) {
    member.is_optimized = is_optimized(member.slice->parameter);
    member.may_accumulate = others_accumulate && !member.is_optimized;
  }
}

void GradientSet::before_backward(std::size_t index) {
  auto& member = members_[index];
  member.before_backward();
  if (reducers_.is_transient()) member.part.note_before_change(member);
}

void GradientSet::add_backward(std::size_t index, const at::Tensor& incoming) {
  auto& member = members_[index];
  const auto& [name, parameter, offset, values] = *member.slice;
  // A mean with error feedback differs from the mean of the gradients, and the residual holds the
  // difference. Averaging the mean again would count the difference twice.
  if (!member.may_accumulate && !member.is_sparse &&
      member.mean.was_added_to(values, parameter.grad(), incoming, member.is_untouched(1))) {
    refuse(name,
           "a second backward added to a mean that was exchanged with error feedback: call "
           "zero_grad() between the two, or run all but the last under no_sync()");
  }
  member.mean.reset();
  member.add_backward(incoming);
  if (reducers_.is_transient()) member.part.note_backward(member);
  if (incoming.requires_grad()) with_graph_.insert(index);
}

void GradientSet::add_unreported_backwards(std::size_t index) {
  const auto& member = members_[index];
  if (member.gradient().defined() && member.state() != GradientState::averaged)
    add_backward(index, {});
}

/// Sets .grad() to the slice. Returns the gradient if it must be copied there, else an undefined
/// tensor.
at::Tensor GradientSet::replace_by_slice(std::size_t index) {
  const auto& [name, parameter, offset, values] = *members_[index].slice;
  auto& gradient = parameter.mutable_grad();
  if (gradient.is_same(values)) return {};
  if (!gradient.defined()) {
    refuse(name,
           "got no gradient from a backward that reached it: freeze parameters before the "
           "forward, not between forward and backward");
  }
  if (gradient.is_sparse()) return {};
  expect_copyable(gradient, *members_[index].slice);
  if (reducers_.is_transient()) return {};  // it has no memory yet
  if (is_stored_in(gradient, values)) {
    gradient = values;
    return {};
  }
  unshare(index);
  return std::exchange(gradient, values);
}

void GradientSet::move_into_bucket(std::size_t index) {
  const at::NoGradGuard no_grad;
  const auto gradient = replace_by_slice(index);
  if (gradient.defined()) copy_into(members_[index].slice->values, gradient);
}

void GradientSet::move_all_into(std::size_t bucket) {
  std::vector<at::Tensor> slices;
  std::vector<at::Tensor> gradients;
  for (auto i = first_[bucket]; i < first_[bucket + 1]; ++i) {
    const auto& [name, parameter, offset, values] = *members_[i].slice;
    if (!members_[i].is_local() || !parameter.grad().defined()) continue;
    if (auto gradient = replace_by_slice(i); gradient.defined()) {
      slices.push_back(values);
      gradients.push_back(std::move(gradient));
    }
  }
  copy_each(slices, gradients);
  for (const auto& gradient : gradients) keep_for_current_stream(gradient);
}

void GradientSet::begin_backward() {
  for (auto& member : members_) member.saved.reset();
  reducers_.keep_parts();
}

void GradientSet::prepare(std::size_t bucket, double factor) {
  // These writes must not count as changes of a gradient.
  const at::AutoDispatchBelowADInplaceOrView no_versions;
  reducers_.begin_use(bucket);
  for (auto i = first_[bucket]; i < first_[bucket + 1]; ++i) prepare_one(i, factor == 1);
  if (finite_check_.enabled() && factor != 0) drop_not_finite(bucket);
}

/// Replaces gradients of a bucket by zero if they are not finite, and sets their flags.
void GradientSet::drop_not_finite(std::size_t bucket) {
  const auto& values = reducers_[bucket].bucket.values();
  if (values.is_cpu() && is_finite(values)) return;
  for (auto i = first_[bucket]; i < first_[bucket + 1]; ++i) {
    if (flag_bytes_[i] == changed_by_rank)
      finite_check_.test(members_[i].slice->values, flag_bytes_[i]);
  }
  if (!values.is_cpu()) values.nan_to_num_(0, 0, 0);
  for (auto i = first_[bucket]; i < first_[bucket + 1]; ++i) {
    if (flag_bytes_[i] != not_finite) continue;
    reducers_.end_use(bucket);  // the program may have the gradient
    members_[i].slice->values.zero_();
  }
}

/// Moves a gradient into the bucket's memory, or the bucket to the gradient's.
void GradientSet::move_in(const Member& member, const at::Tensor& gradient, bool keeps_values) {
  auto& bucket = reducers_[member.bucket].bucket;
  const auto& values = member.slice->values;
  // Autograd still has the gradient while hooks run, and the program may have it.
  if (reducers_.takes_gradient(member.bucket) && keeps_values &&
      gradient.strides() == values.strides() && has_values_in_memory(gradient)) {
    bucket.move_to(flat_part(gradient, 0, static_cast<std::size_t>(gradient.numel())));
  } else {
    copy_into(values, gradient);
  }
  member.slice->parameter.mutable_grad().reset();
}

void GradientSet::prepare_one(std::size_t index, bool keeps_values) {
  auto& member = members_[index];
  const auto& values = member.slice->values;
  const auto& gradient = member.gradient();
  if (!is_stored_in(gradient, values)) unshare(index);
  if (reducers_.is_transient()) member.part.note_before_change(member);
  if (gradient.is_sparse()) {
    flag_bytes_[index] = wrong_layout;
    values.zero_();
    return;
  }
  const bool changed = member.is_local() && gradient.defined();
  flag_bytes_[index] = changed ? changed_by_rank : unchanged;
  if (changed && reducers_.is_transient()) {
    expect_copyable(gradient, *member.slice);
    return move_in(member, gradient, keeps_values);
  }
  if (changed) return move_into_bucket(index);
  if (is_stored_in(gradient, values)) {
    member.saved = gradient.clone();  // the mean of N equal values may differ from them by rounding
  }
  // With a residual, the unchanged mean is not sent again, only the residual.
  if (!gradient.defined() || reducers_[member.bucket].has_residual()) {
    values.zero_();
  } else if (!member.saved.defined()) {
    copy_into(values, gradient);
  }
}

void GradientSet::prepare_sparse(double factor) {
  for (auto i = first_.back(); i < members_.size(); ++i) {
    const auto& gradient = members_[i].gradient();
    const bool changed = gradient.defined() && (members_[i].is_local() || !gradient.is_sparse());
    flag_bytes_[i] = changed ? changed_by_rank : unchanged;
    const auto& values = sparse_.contribute(i - first_.back(), gradient, factor);
    if (!finite_check_.enabled() || !values.defined()) continue;
    finite_check_.test(values, flag_bytes_[i]);
    if (flag_bytes_[i] == not_finite) sparse_.contribute(i - first_.back(), {}, factor);
  }
}

void GradientSet::complete_flags(double factor) {
  const std::span flags(flag_bytes_, size());
  if (factor == 0) std::ranges::replace(flags, changed_by_rank, changed_without_weight);
  for (std::size_t i = 0; i < size(); ++i) {
    auto& presence = flag_bytes_[size() + i];
    presence = factor != 0 && members_[i].gradient().defined() ? present : absent;
    if (factor != 0 && members_[i].part.factor() != 1 && has_part(i)) presence = replaces_part;
  }
  finite_check_.complete(flags);
}

void GradientSet::count_unchanged() {
  for (std::size_t i = 0; i < size(); ++i) {
    // With a residual, the exchange has no unchanged gradients.
    if (flag_bytes_[i] == changed_without_weight && flag_bytes_[size() + i] != absent &&
        !has_residual(members_[i]))
      flag_bytes_[i] = changed_by_rank;
  }
}

void GradientSet::agree_on_part_factors(double factor, const Group& group) {
  const std::span presences(flag_bytes_ + size(), size());
  part_factors_.clear();
  if (std::ranges::find(presences, replaces_part) == presences.end()) return;
  const auto sums = at::empty({static_cast<std::int64_t>(size())}, at::kDouble);
  const std::span values(sums.data_ptr<double>(), size());
  for (std::size_t i = 0; i < size(); ++i)
    values[i] = members_[i].part.factor() * factor / group.size();
  group.all_reduce(sums).wait();
  for (std::size_t i = 0; i < size(); ++i)
    part_factors_.push_back(presences[i] == replaces_part ? values[i] : 1);
}

void GradientSet::flag_replaced(std::size_t index) {
  if (flag_bytes_[index] == unchanged) flag_bytes_[index] = replaced;
}

std::exception_ptr GradientSet::layout_error(std::size_t index, const Group& group) const {
  const auto& [name, parameter, offset, values] = *members_[index].slice;
  const auto& gradient = parameter.grad();
  const bool is_here = gradient.is_sparse();
  return std::make_exception_ptr(invalid_at(
      concat("parameter ", name), group, "got a ",
      is_here ? concat("gradient of layout ", gradient.layout(), " on this rank")
              : std::string("sparse gradient on another rank"),
      ", expected a dense one: list the parameter in DataParallelOptions::sparse_gradients, or "
      "set sparse = false where it is used"));
}

std::exception_ptr GradientSet::replaced_error(std::size_t index, const Group& group) const {
  const auto& member = members_[index];
  return std::make_exception_ptr(invalid_at(
      concat("parameter ", member.slice->name), group,
      "got backwards that reach another tensor of sizes ", member.slice->parameter.sizes(),
      " in its place, on ", member.is_local() ? "another" : "this",
      " rank, whose gradient is not averaged, expected the tensor that was registered when the "
      "model was wrapped: copy values into it under NoGradGuard, or register the other tensor and "
      "wrap the model again; if it is unused on purpose, call its requires_grad_(false)"));
}

std::exception_ptr GradientSet::take_error(std::int64_t step, const Group& group) {
  std::exception_ptr error;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const auto& member = members_[i];
    const auto flag = flag_bytes_[i];
    if (target(member, step) != SyncTarget::gradients || flag < wrong_layout) continue;
    flag_bytes_[i] = unchanged;
    if (error != nullptr) continue;
    error = flag == replaced ? replaced_error(i, group) : layout_error(i, group);
  }
  const auto finite_error = finite_check_.take_error(
      {flag_bytes_, size()}, [this](std::size_t index) { return name_of(index); }, group);
  return error != nullptr ? error : finite_error;
}

SyncTarget GradientSet::target(const Member& member, std::int64_t step) const {
  return member.is_sparse ? SyncTarget::gradients : reducers_.target(member.bucket, step);
}

bool GradientSet::has_residual(const Member& member) const {
  return !member.is_sparse && reducers_[member.bucket].has_residual();
}

void GradientSet::finish_exchange(std::int64_t step, bool some_in_step) {
  const at::AutoDispatchBelowADInplaceOrView no_versions;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    auto& member = members_[i];
    if (target(member, step) != SyncTarget::gradients) {
      member.set_unchanged();
    } else if (flag_bytes_[i] <= changed_without_weight) {
      restore(i);
    } else if (!member.is_sparse && reducers_.product(member.bucket) == Product::part) {
      reducers_[member.bucket].shard->add(i - first_[member.bucket],
                                          part_factors_.empty() ? 1 : part_factors_[i]);
      has_got_parts_ = true;
      member.slice->parameter.mutable_grad().reset();
      member.set_not_averaged();
      if (some_in_step) from_step_.insert(i);
    } else {
      set_mean(i);
      if (some_in_step) from_step_.insert(i);
    }
    member.saved.reset();
    member.part.set_factor(1);
  }
  with_graph_.clear();
  for (std::size_t bucket = 0; bucket < reducers_.size(); ++bucket) {
    if (auto& shard = reducers_[bucket].shard) shard->end_exchange();
    reducers_.end_use(bucket);
  }
}

void GradientSet::set_mean(std::size_t index) {
  auto& member = members_[index];
  const auto& values = member.slice->values;
  auto& gradient = member.slice->parameter.mutable_grad();
  if (!gradient.is_same(values)) gradient = values;
  if (with_graph_.contains(index)) gradient = without_graph(values, member.slice->name);
  if (has_residual(member)) member.mean.set(values);
  member.set_averaged();
}

/// A gradient that no rank has changed is what it was before the exchange. One that only ranks of
/// weight 0 have changed is dropped.
void GradientSet::restore(std::size_t index) {
  auto& member = members_[index];
  const auto& values = member.slice->values;
  // No optimizer applies a gradient that no rank computed, so the values return to the residual.
  if (has_residual(member)) {
    const auto& residual = reducers_[member.bucket].residuals[index - first_[member.bucket]];
    if (residual.defined()) residual.add_(values.to(residual.device()));
  }
  if (member.saved.defined()) values.copy_(member.saved);
  if (flag_bytes_[index] != unchanged) member.slice->parameter.mutable_grad().reset();
  member.set_unchanged();
}

void GradientSet::keep_averages() {
  for (auto& member : members_) member.keep_average();
}

void GradientSet::set_flags(std::size_t bucket, double factor) {
  for (auto i = first_[bucket]; i < first_[bucket + 1]; ++i) {
    const auto& gradient = members_[i].gradient();
    const bool changed = gradient.defined() && members_[i].state() != GradientState::averaged;
    flag_bytes_[i] = changed ? changed_by_rank : unchanged;
    if (changed && finite_check_.enabled() && factor != 0 && !gradient.is_sparse())
      finite_check_.test(gradient, flag_bytes_[i]);
  }
}

void GradientSet::end_without_exchange() {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (flag_bytes_[i] != unchanged) members_[i].set_not_averaged();
  }
  with_graph_.clear();
}

}  // namespace lockstep::detail
