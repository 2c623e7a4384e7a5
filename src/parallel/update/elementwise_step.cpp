#include "parallel/update/elementwise_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <utility>

#include "parallel/update/own_step.h"

namespace lockstep::inline v0_2::detail {
namespace {

/// The tensors of a state that its optimizer uses.
std::vector<at::Tensor*> defined_tensors_of(torch::optim::OptimizerParamState& state) {
  auto tensors = tensors_of(state);
  std::erase_if(tensors, [](const at::Tensor* tensor) { return !tensor->defined(); });
  return tensors;
}

}  // namespace

/// The parameter group of a parameter. Parameters may be added to the optimizer at any time.
std::optional<std::size_t> ElementwiseStep::group_of(const at::Tensor& parameter) const {
  const auto& groups = optimizer_.param_groups();
  std::size_t count = 0;
  for (const auto& group : groups) count += group.params().size();
  if (count != counted_) {
    groups_.clear();
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (const auto& other : groups[g].params()) groups_[other.unsafeGetTensorImpl()] = g;
    }
    counted_ = count;
  }
  const auto found = groups_.find(parameter.unsafeGetTensorImpl());
  return found == groups_.end() ? std::nullopt : std::optional(found->second);
}

bool ElementwiseStep::has(const at::Tensor& parameter) const {
  return group_of(parameter).has_value();
}

ElementwiseStep::ParamState* ElementwiseStep::find(const at::Tensor& parameter) const {
  const auto found = optimizer_.state().find(parameter.unsafeGetTensorImpl());
  return found == optimizer_.state().end() ? nullptr : found->second.get();
}

std::unique_ptr<ElementwiseStep::ParamState> ElementwiseStep::take(const at::Tensor& tensor) {
  const auto found = optimizer_.state().find(tensor.unsafeGetTensorImpl());
  if (found == optimizer_.state().end()) return nullptr;
  auto state = std::move(found->second);
  optimizer_.state().erase(found);
  return state;
}

void ElementwiseStep::step_on(const at::Tensor& parameter, const at::Tensor& elements,
                              const at::Tensor& gradient) {
  ParameterLists lists(optimizer_.param_groups().size());
  lists[*group_of(parameter)].push_back(elements);
  elements.mutable_grad() = gradient;
  detail::step_on(optimizer_, lists);
  elements.mutable_grad().reset();
}

/// The state that the optimizer makes of a parameter: which tensors that has, follows from a step
/// on no elements. Null if it has none. The tensors that an update will define are empty.
std::unique_ptr<ElementwiseStep::ParamState> ElementwiseStep::first_state(
    const at::Tensor& parameter) {
  const auto none = at::empty({0}, parameter.options());
  step_on(parameter, none, at::empty_like(none));
  return take(none);
}

std::vector<at::Tensor*> ElementwiseStep::state_of(const at::Tensor& parameter) {
  const at::NoGradGuard no_grad;
  if (auto* state = find(parameter)) return defined_tensors_of(*state);
  auto state = first_state(parameter);
  if (state == nullptr) return {};
  const auto tensors = defined_tensors_of(*state);
  for (auto* tensor : tensors) tensor->reset();
  add_steps(*state, -1);
  first_states_[parameter.unsafeGetTensorImpl()] = std::move(state);
  return tensors;
}

void ElementwiseStep::begin_update(const at::Tensor& parameter) {
  if (auto first = first_states_.extract(parameter.unsafeGetTensorImpl()))
    optimizer_.state()[parameter.unsafeGetTensorImpl()] = std::move(first.mapped());
  if (auto* state = find(parameter)) add_steps(*state, 1);
}

void ElementwiseStep::update(const at::Tensor& parameter, const Elements& elements) {
  const at::NoGradGuard no_grad;
  const auto& values = elements.values;
  if (auto* whole = find(parameter); whole != nullptr && !elements.is_first) {
    auto state = whole->clone();
    const auto tensors = defined_tensors_of(*state);
    for (std::size_t k = 0; k < tensors.size(); ++k) *tensors[k] = elements.state[k];
    add_steps(*state, -1);  // the step adds it
    optimizer_.state()[values.unsafeGetTensorImpl()] = std::move(state);
  }
  step_on(parameter, values, elements.gradient);
  const auto updated = take(values);
  if (updated == nullptr) return;
  const auto tensors = defined_tensors_of(*updated);
  for (std::size_t k = 0; k < tensors.size(); ++k) {
    // The first step makes tensors of its own.
    if (tensors[k]->const_data_ptr() == elements.state[k].const_data_ptr()) continue;
    elements.state[k].copy_(*tensors[k]);
  }
}

}  // namespace lockstep::detail
