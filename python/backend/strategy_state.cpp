// The buckets of a StrategyHook, with the state of their exchanges.

#include <ATen/ATen.h>

#include <algorithm>

#include "backend/errors.h"
#include "backend/strategy_hook.h"

namespace lockstep_torch {

StrategyHook::GradientVersion StrategyHook::GradientVersion::of(const at::Tensor& parameter) {
  const auto& gradient = parameter.grad();
  if (!gradient.defined()) return {};
  auto* const identity = gradient.unsafeGetTensorImpl();
  return {.identity = identity, .version = identity->version_counter().current_version()};
}

StrategyHook::Entry& StrategyHook::entry_for(const c10d::GradBucket& bucket) {
  const auto index = bucket.getIndex();
  const auto& buffer = bucket.getBuffer();
  if (buffer.layout() != at::kStrided) {
    refuse(operation, c10::str("got gradients of layout ", buffer.layout(),
                               ", expected dense gradients; make the embedding with sparse=False"));
  }
  const auto parameters = bucket.getParameters();
  const auto same = [](const lockstep::Bucket::Slice& slice, const at::Tensor& parameter) {
    return slice.parameter.is_same(parameter);
  };
  if (entries_.size() <= index) entries_.resize(index + 1);
  if (const auto& entry = entries_[index];
      entry && std::ranges::equal(entry->bucket->slices(), parameters, same) &&
      entry->bucket->values().scalar_type() == buffer.scalar_type()) {
    return *entry;
  }
  // DDP has distributed the parameters over other buckets. The buckets before this one are as they
  // were, and the state of all others belongs to parameters of this bucket and later ones.
  dissolve(index);
  entries_.resize(index + 1);
  number(parameters);
  entries_[index] = make_entry(bucket);
  return *entries_[index];
}

/// Numbers the parameters of a bucket. DDP's first buckets have the parameters of a dtype in the
/// model's order, the last ones in the first bucket.
void StrategyHook::number(const std::vector<at::Tensor>& parameters) {
  for (auto next = parameters.rbegin(); next != parameters.rend(); ++next) {
    if (parameters_.contains(next->unsafeGetTensorImpl())) continue;
    const auto number = --numbered_[next->scalar_type()];
    const auto name = c10::str(c10::getDtypeNames(next->scalar_type()).first, "[", number, "]");
    parameters_.insert({next->unsafeGetTensorImpl(), {.name = name, .tensor = *next}});
  }
}

std::unique_ptr<StrategyHook::Entry> StrategyHook::make_entry(const c10d::GradBucket& bucket) {
  const auto& buffer = bucket.getBuffer();
  auto entry = std::make_unique<Entry>();
  std::vector<lockstep::Bucket::Slice> slices;
  std::size_t offset = 0;
  for (const auto& parameter : bucket.getParameters()) {
    slices.push_back({.name = parameters_.at(parameter.unsafeGetTensorImpl()).name,
                      .parameter = parameter,
                      .offset = offset});
    offset += static_cast<std::size_t>(parameter.numel());
  }
  progress_->locked([&](const auto&) {
    with_python_errors([&] {
      entry->bucket.emplace(bucket.getIndex(), offset, buffer.scalar_type(), std::move(slices),
                            *group_);
      entry->exchange = strategy_.exchange(*entry->bucket);
      load_carried(*entry);
    });
  });
  const auto state = entry->exchange->state();
  for (const auto& slice : entry->bucket->slices()) {
    const auto found = state.find(slice.name + ".residual");
    entry->residuals.push_back(found == state.end() ? at::Tensor() : found->second);
  }
  return entry;
}

/// Loads the state that the parameters had in other buckets, or that load() got.
void StrategyHook::load_carried(Entry& entry) {
  const auto own = entry.exchange->state();
  const bool found =
      std::ranges::any_of(own, [&](const auto& named) { return carried_.contains(named.first); });
  if (own.empty() || (!found && !loaded_)) return;
  entry.exchange->load(carried_);
  for (const auto& [name, values] : own) carried_.erase(name);
}

/// Moves the state of the exchanges from this index on to carried_.
void StrategyHook::dissolve(std::size_t from) {
  for (auto i = from; i < entries_.size(); ++i) {
    if (!entries_[i]) continue;
    for (auto& [name, values] : entries_[i]->exchange->state()) {
      carried_.insert_or_assign(name, values);
    }
  }
  if (from < entries_.size()) entries_.resize(from);
}

void StrategyHook::fill(Entry& entry, const at::Tensor& buffer) {
  entry.begun = false;
  entry.task = {};
  entry.work.reset();
  if (buffer.numel() != entry.bucket->values().numel()) {
    refuse(operation, c10::str("got a bucket of ", buffer.numel(), " elements, expected the ",
                               entry.bucket->values().numel(),
                               " elements of its parameters; pass the bucket as DDP made it"));
  }
  entry.bucket->values().copy_(buffer.reshape({-1}));
  entry.gradients.clear();
  for (const auto& slice : entry.bucket->slices()) {
    entry.gradients.push_back(GradientVersion::of(slice.parameter));
  }
}

void StrategyHook::expect_complete_load() {
  if (!loaded_) return;
  if (!carried_.empty()) {
    refuse(operation,
           c10::str("load_state_dict() got ", carried_.begin()->first,
                    ", which no parameter of the "
                    "model has under ",
                    strategy_.text(),
                    ", expected the state of the same model "
                    "and strategy; pass the model to Strategy() if the state was saved so"));
  }
  loaded_ = false;
}

/// DDP leaves a gradient as it is if no rank used the parameter, although it may have put an old
/// gradient into the bucket. The residual is then as if the parameter had not been exchanged.
void StrategyHook::return_unused() {
  if (error_) return;
  for (auto* entry : backward_) {
    for (std::size_t i = 0; i < entry->gradients.size(); ++i) {
      const auto& slice = entry->bucket->slices()[i];
      const auto& residual = entry->residuals[i];
      if (!residual.defined() || entry->gradients[i] != GradientVersion::of(slice.parameter)) {
        continue;
      }
      residual.add_(slice.values);
      if (slice.parameter.grad().defined()) residual.sub_(slice.parameter.grad());
    }
    entry->gradients.clear();
  }
}

lockstep::State StrategyHook::state() {
  const std::lock_guard lock(mutex_);
  if (unusable_) std::rethrow_exception(unusable_);
  if (is_running()) {
    refuse(operation, "got state_dict() during a backward, expected a call between two backwards");
  }
  auto all = carried_;
  for (const auto& entry : entries_) {
    if (entry) all.merge(entry->exchange->state());
  }
  for (auto& [name, values] : all) values = values.clone();
  return all;
}

void StrategyHook::load(std::int64_t step, const lockstep::State& state) {
  const std::lock_guard lock(mutex_);
  if (is_running()) {
    refuse(operation,
           "got load_state_dict() during a backward, expected a call between two backwards");
  }
  for (const auto& [identity, parameter] : parameters_) {
    const auto found = state.find(parameter.name + ".residual");
    if (found == state.end() || found->second.sizes() == parameter.tensor.sizes()) continue;
    refuse(operation, c10::str("load_state_dict() got a residual of parameter ", parameter.name,
                               " with sizes ", found->second.sizes(), ", expected ",
                               parameter.tensor.sizes(), "; load the state of the same model"));
  }
  backward_.clear();
  in_backward_ = false;
  entries_.clear();
  carried_ = state;
  for (auto& [name, values] : carried_) values = values.clone();
  loaded_ = true;
  step_ = step;
}

}  // namespace lockstep_torch
