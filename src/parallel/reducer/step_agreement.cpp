#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "core/numeric/digest.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "parallel/reducer/gradient.h"
#include "parallel/reducer/gradient_set.h"
#include "parallel/reducer/reducer.h"

// The step agreement, and what gradients and reducer do for a DistributedOptimizer, whose step() it
// begins.

namespace lockstep::inline v0_2::detail {
namespace {

/// Name of the count of exchanges in a state. All other names are of parameters.
constexpr const char* step_name = "lockstep/step";

}  // namespace

/// Whether the gradient is in the memory of a mean that must not be averaged again.
bool GradientSet::is_final_mean(const Member& member) const {
  return has_residual(member) && !member.may_accumulate &&
         is_stored_in(member.gradient(), member.slice->values);
}

/// Whether this rank has its part of a mean that no step has used.
bool GradientSet::has_part(std::size_t index) const {
  const auto& member = members_[index];
  if (member.is_sparse) return false;
  const auto& shard = reducers_[member.bucket].shard;
  return shard != nullptr && shard->gradient(index - first_[member.bucket]).defined();
}

bool GradientSet::has_parts() const {
  return std::ranges::any_of(reducers_.all(), [](const BucketReducer& reducer) {
    return reducer.shard != nullptr && reducer.shard->has_mean();
  });
}

LostMean GradientSet::lost_mean() const {
  if (has_got_parts_ && !has_parts()) return LostMean::dropped;
  bool has_changed = false;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const auto& member = members_[i];
    if (!member.is_optimized) continue;
    const auto state = member.state();
    const bool is_edited = state == GradientState::edited;
    if (state == GradientState::local_after_drop || (is_edited && !member.gradient().defined())) {
      return LostMean::dropped;
    }
    const bool has_replaced =
        has_part(i) && (member.part.factor() != 1 || member.part.is_assigned(member));
    has_changed =
        has_changed || is_edited || has_replaced || state == GradientState::local_after_edit;
  }
  return has_changed ? LostMean::changed : LostMean::none;
}

bool GradientSet::holds_mean() const {
  if (has_parts()) return true;
  return std::ranges::any_of(members_, [&](const Member& member) {
    const auto& gradient = member.gradient();
    if (!member.is_optimized || !is_stored_in(gradient, member.slice->values)) return false;
    const auto state = member.state();
    // zero_grad(false) has edited a mean to zeros.
    return state == GradientState::averaged ||
           (state == GradientState::edited && gradient.any().item<bool>());
  });
}

StepIntent GradientSet::intent(std::int64_t step) const {
  StepIntent own{.step = Compared(static_cast<std::uint32_t>(step)),
                 .lost_mean = lost_mean(),
                 .holds_mean = holds_mean()};
  std::uint64_t means = 0;
  std::uint64_t edited = 0;
  // Each digest covers the one before.
  const auto add = [](std::uint64_t& total, std::size_t index, std::uint64_t next) {
    const std::array<std::uint64_t, 3> input{total, index, next};
    total = digest(std::as_bytes(std::span(input)));
  };
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const auto& member = members_[i];
    if (target(member, step) != SyncTarget::gradients) continue;
    const auto& gradient = member.gradient();
    switch (member.state()) {
      case GradientState::none:
        break;
      case GradientState::local:
      case GradientState::local_after_edit:
      case GradientState::local_after_drop:
        own.has_local = 1;
        break;
      case GradientState::averaged:
        add(means, i, digest_of_mean(gradient));
        own.has_final_mean |= is_final_mean(member);
        break;
      case GradientState::assigned:
      case GradientState::edited:
        if (!gradient.defined()) break;
        if (gradient.is_sparse() != member.is_sparse) {
          own.has_local = 1;  // the exchange reports it on every rank
          break;
        }
        if (!member.is_sparse) expect_copyable(gradient, *member.slice);
        add(edited, i, checksum(gradient));
        own.has_edited_mean |= is_final_mean(member);
        break;
    }
  }
  own.means = Compared(means);
  own.edited = Compared(edited);
  return own;
}

void GradientSet::mark_differing_as_local(const StepIntent& all, const Group& group) {
  const bool means_alike = all.means.is_equal();
  const bool edited_alike = all.edited.is_equal();
  const bool not_allowed =
      (!means_alike && all.has_final_mean != 0) || (!edited_alike && all.has_edited_mean != 0);
  std::string names;
  for (auto& member : members_) {
    if (!member.gradient().defined() || member.is_local()) continue;
    const bool alike = member.state() == GradientState::averaged ? means_alike : edited_alike;
    if (alike) continue;
    if (!not_allowed) {
      if (reducers_.is_transient()) member.part.note_before_change(member);
      member.set_local();
    } else if (is_final_mean(member)) {
      names += concat(names.empty() ? "" : ", ", member.slice->name);
    }
  }
  if (!not_allowed) return;
  throw invalid_at(
      "DistributedOptimizer", group, "the averaged gradient of ",
      names.empty() ? "a parameter" : "parameter ", names, " was changed in place",
      names.empty() ? " on another rank" : "",
      ", to other values than on another rank, expected the same change on every rank: the "
      "strategy keeps a residual and cannot average the mean again: call zero_grad() before you "
      "set gradients by hand, clip by a norm that is the same on all ranks, or use a strategy "
      "without error feedback");
}

void GradientSet::rescale_means_from_step(double factor) {
  for (const auto index : from_step_) {
    auto& member = members_[index];
    auto& gradient = member.slice->parameter.mutable_grad();
    if (reducers_.is_transient()) member.part.set_factor(member.part.factor() * factor);
    if (!gradient.defined()) continue;
    if (factor == 0) {
      gradient = at::Tensor();
    } else {
      // A combination of equal gradients that is no mean is that gradient already.
      const bool weighs = member.is_sparse || reducers_.takes_weights(member.bucket);
      gradient = gradient.mul(weighs ? factor : 1);  // not in place: the program may hold it
      member.set_local();
    }
  }
}

void Reducer::check_unattached() const {
  if (!has_optimizer_) return;
  throw invalid_in("DistributedOptimizer", group_,
                   "got a DistributedDataParallel that has a DistributedOptimizer, expected one "
                   "for each: destroy the other one first, or construct both over the model with "
                   "optimized_only");
}

void Reducer::check_optimizer() const {
  if (needs_optimizer_ == nullptr || has_optimizer_) return;
  throw invalid_in("DistributedDataParallel", group_, needs_optimizer_,
                   ": got no DistributedOptimizer, expected one before the first forward, because "
                   "each rank updates a part of the parameters: construct "
                   "DistributedOptimizer(optimizer, ddp), and call its step()");
}

void Reducer::attach_optimizer(const IsOptimized& is_optimized) {
  reducers_.set_optimized(is_optimized);
  gradients_.set_optimized(is_optimized, owner_.owner == Source::Owner::distributed_optimizer);
  has_optimizer_ = true;
  update_membership();
}

void Reducer::watch_own_steps(std::function<OwnStepCheck::Marks()> marks, Shard shard) {
  if (needs_optimizer_ == nullptr && !parameters_may_differ()) return;
  own_steps_.begin(std::move(marks), shard != Shard::gradients);
}

void Reducer::detach_optimizer() {
  has_optimizer_ = false;
  own_steps_.end();
  options_ = nullptr;
  update_membership();
}

/// A DistributedOptimizer's own agreement lets a rank without a loss take part.
void Reducer::update_membership() {
  if (has_optimizer_ || owner_.owner == Source::Owner::distributed_optimizer) {
    wrappers_->remove_member(*this);
  } else {
    wrappers_->add_member(*this);
  }
}

/// For a step that exchanges no gradients.
void Reducer::exchange_flags() {
  if (!gradients_.checks_finite() && !reducers_.exchanges(SyncTarget::parameters, step_)) return;
  for (std::size_t i = 0; gradients_.checks_finite() && i < reducers_.size(); ++i)
    gradients_.set_flags(i, 1);
  begin_flags().wait();
  if (const auto error = end_flags()) std::rethrow_exception(error);
}

at::Tensor Reducer::mean_of_losses(const at::Tensor& loss) {
  const bool is_number = !loss.defined() || loss.numel() == 1;
  // A factor of 0 must also remove NaN.
  const double own = loss.defined() && is_number && last_factor_ != 0 ? loss.item<double>() : 0;
  const auto sums = at::empty({2}, at::kDouble);
  auto* const values = sums.data_ptr<double>();
  values[0] = own * last_factor_;
  values[1] = is_number ? 0 : 1;
  {
    const SourceScope scope(host_.communicator(), source(Source::Content::step_agreement));
    host_.all_reduce(sums).wait();
  }
  if (values[1] != 0) {
    throw invalid_at("DistributedOptimizer", group_, "step(closure): got a loss of ",
                     is_number ? std::string("several elements on another rank")
                               : concat(loss.numel(), " elements on this rank"),
                     ", expected one element: return the mean or the sum of the losses");
  }
  return at::scalar_tensor(values[0] / group_.size(), at::kDouble);
}

/// Call when all ranks are in step(). Returns whether they exchange their gradients.
bool Reducer::prepare_step(const StepIntent& all, bool has_followed) {
  if (all.lacks_graph() && !parameters_may_differ()) {
    throw invalid_at(
        "DistributedOptimizer", group_,
        "backward_and_update(): got no loss that requires a gradient on any rank, expected the "
        "result of a forward: do not detach() it or compute it under NoGradGuard; a rank without "
        "a loss passes an undefined tensor");
  }
  // A rank has its part of a mean of which another one has dropped its part.
  if (reducers_.is_transient() && all.holds_mean != 0 && all.lost_mean == LostMean::dropped)
    throw dropped_mean_error();
  const bool are_alike = all.means.is_equal() && all.edited.is_equal();
  if (all.has_local == 0 && are_alike) return false;
  if (all.has_followed != 0 && all.has_local != 0 && all.lost_mean != LostMean::none)
    throw dropped_mean_error();
  if (!are_alike) gradients_.mark_differing_as_local(all, group_);
  if (all.has_followed != 0 && all.has_local == 0) {
    // A rank that joined ran zero_grad() or clipping before it had the means. The others' gradients
    // count instead of its own.
    set_weight(has_followed ? 0 : 1);
    gradients_.rescale_means_from_step(weights_.take_factor());
  }
  return true;
}

/// The error for gradients that contain the last mean on some ranks only.
InvalidArgument Reducer::dropped_mean_error() const {
  return invalid_at(
      "DistributedOptimizer", group_,
      "got a backward after the mean of the one before was dropped or changed, while another "
      "rank holds that mean, expected the same calls of step() and zero_grad() on all ranks: call "
      "step() before zero_grad(), or leave it out on every rank, and call "
      "zero_grad() also on a rank without a loss");
}

/// Throws: InvalidArgument, on every rank, when the ranks have made unequal numbers of steps.
StepIntent Reducer::end_agreement() {
  const auto all = agreement_.end();
  if (!all.step.is_equal()) {
    throw invalid_at("DistributedOptimizer", group_, "got ", step_,
                     " steps so far on this rank, and another number on another rank, expected the "
                     "same number on all ranks: call step() on all ranks or on none");
  }
  return all;
}

/// The step agreement of a rank in step().
StepIntent Reducer::agree(bool has_followed, LossGraph loss) {
  auto own = gradients_.intent(step_);
  own.has_followed = has_followed;
  own.loss = loss;
  if (weights_.is_own_zero()) own.holds_mean = 0;  // the exchange leaves it out
  own.in_step = StepIntent::place_of(reducers_.product());
  own.options = Compared(static_cast<std::uint32_t>(digest_of_options()));
  const SourceScope scope(host_.communicator(), source(Source::Content::step_agreement));
  agreement_.begin(own);
  return end_agreement();
}

std::uint64_t Reducer::digest_of_options() const {
  if (!options_) return 0;
  std::vector<double> values;
  for (const auto& option : options_()) values.push_back(option.value);
  return digest(std::as_bytes(std::span(values)));
}

/// Throws: InvalidArgument, on every rank, unless the ranks' options are equal. Ranks: all.
void Reducer::check_options(bool are_equal) const {
  if (are_equal) return;
  std::vector<std::string> lines;
  for (const auto& [group, name, value] : options_())
    lines.push_back(concat(name, ' ', shortest(value), " of parameter group ", group));
  const SourceScope scope(host_.communicator(), source(Source::Content::step_agreement));
  const auto differing =
      difference(host_.communicator(), lines).value_or(LineDifference{.text = "different options"});
  throw InvalidArgument(
      at_rank("DistributedOptimizer", group_, "got ", differing.text,
              ", expected the same options of the optimizer on all ranks, because each rank "
              "updates a part of the parameters: set them on every rank"),
      {.rank = differing.rank, .operation = "DistributedOptimizer"});
}

double Reducer::begin_without_exchange() {
  last_factor_ = weights_.begin_exchange(true);
  for (std::size_t i = 0; i < reducers_.size(); ++i) gradients_.set_flags(i, last_factor_);
  return last_factor_;
}

std::span<const std::uint8_t> Reducer::end_without_exchange() {
  // Nothing is exchanged here, and so nothing else to check.
  auto flags = begin_flags(Compared(digest_of_options()));
  begin_buffers();
  flags.wait();
  buffers_->end();
  const auto error = end_flags();
  gradients_.end_without_exchange();
  group_.communicator().count_step();
  if (error) std::rethrow_exception(error);
  check_options(gradients_.checks().parameters.is_equal());
  return gradients_.changed();
}

void Reducer::before_update() {
  if (parameters_may_differ()) reducers_.before_update(step_);
}

void Reducer::exchange_parameters() {
  const auto step = step_++;
  own_steps_.end();
  weights_.end_step();
  gradients_.end_step();
  if (parameters_may_differ()) reducers_.count_skipped(step);
  if (reducers_.exchanges(SyncTarget::parameters, step)) {
    begin_buffers();
    reducers_.exchange_parameters(step);
    buffers_->end();
  }
  buffers_->end_step();
}

void Reducer::average_parameters() {
  own_steps_.end();
  if (!parameters_may_differ()) return;
  begin_buffers();
  reducers_.average_parameters();
  buffers_->end();
  buffers_->end_step();
}

State Reducer::state() const {
  auto state = reducers_.state();
  state.emplace(step_name, at::scalar_tensor(step_, at::kLong));
  return state;
}

void Reducer::load(const State& state) {
  const auto step = state.find(step_name);
  if (step == state.end() || step->second.numel() != 1 || step->second.scalar_type() != at::kLong) {
    throw InvalidArgument(concat("strategy state: got none under \"", step_name,
                                 "\", expected the count of exchanges as one Long"));
  }
  reducers_.load(state);
  step_ = step->second.item<std::int64_t>();
}

}  // namespace lockstep::detail
