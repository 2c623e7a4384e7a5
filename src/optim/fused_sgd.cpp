#include "lockstep/fused_sgd.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty_like.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace lockstep::inline v0_2 {
namespace {

using torch::optim::SGDOptions;
using torch::optim::SGDParamState;

/// Arguments of one call of the kernel.
struct KernelArguments {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> momenta;
};

void run(const KernelArguments& lists, const SGDOptions& options, bool is_first) {
  at::_fused_sgd_(lists.parameters, lists.gradients, lists.momenta, options.weight_decay(),
                  options.momentum(), options.lr(), options.dampening(), options.nesterov(), false,
                  is_first);
}

bool has_same_layout(const at::Tensor& parameter, const at::Tensor& other) {
  return other.layout() == at::kStrided && other.scalar_type() == parameter.scalar_type() &&
         other.device() == parameter.device() && other.strides() == parameter.strides();
}

}  // namespace

/// Whether the kernel supports all tensors. It reads and writes memory in order, so layouts must be
/// equal.
bool FusedSgd::fits() const {
  for (const auto& group : param_groups()) {
    for (const auto& parameter : group.params()) {
      const auto& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      if (!parameter.is_cpu() || !parameter.is_non_overlapping_and_dense() ||
          !parameter.is_floating_point() || !has_same_layout(parameter, gradient)) {
        return false;
      }
      const auto entry = state().find(parameter.unsafeGetTensorImpl());
      if (entry == state().end()) continue;
      const auto& momentum = static_cast<const SGDParamState&>(*entry->second).momentum_buffer();
      if (momentum.defined() && !has_same_layout(parameter, momentum)) return false;
    }
  }
  return true;
}

void FusedSgd::step_group(torch::optim::OptimizerParamGroup& group) {
  const auto& options = static_cast<const SGDOptions&>(group.options());
  // One call per dtype, and separate calls for parameters whose momentum this step initialises.
  std::map<std::pair<bool, at::ScalarType>, KernelArguments> calls;
  for (auto& parameter : group.params()) {
    if (!parameter.grad().defined()) continue;
    bool is_first = false;
    at::Tensor momentum;
    if (options.momentum() != 0) {
      auto& param_state = state_of(parameter);
      is_first = !param_state.momentum_buffer().defined();
      if (is_first) param_state.momentum_buffer(at::empty_like(parameter));
      momentum = param_state.momentum_buffer();
    }
    auto& lists = calls[{is_first, parameter.scalar_type()}];
    lists.parameters.push_back(parameter);
    lists.gradients.push_back(parameter.grad());
    if (momentum.defined()) lists.momenta.push_back(momentum);
  }
  for (const auto& [call, lists] : calls) run(lists, options, call.first);
}

const SGDOptions* FusedSgd::options_of(const at::Tensor& parameter) const {
  const auto& groups = param_groups();
  const auto is_at = [&](const Place& place) {
    return place.group < groups.size() && place.index < groups[place.group].params().size() &&
           groups[place.group].params()[place.index].is_same(parameter);
  };
  const auto options = [&](const Place& place) {
    return &static_cast<const SGDOptions&>(groups[place.group].options());
  };
  const auto entry = places_.find(parameter.unsafeGetTensorImpl());
  if (entry != places_.end() && is_at(entry->second)) return options(entry->second);
  Place place;
  for (; place.group < groups.size(); ++place.group) {
    for (place.index = 0; place.index < groups[place.group].params().size(); ++place.index) {
      if (!is_at(place)) continue;
      places_[parameter.unsafeGetTensorImpl()] = place;
      return options(place);
    }
  }
  return nullptr;
}

SGDParamState& FusedSgd::state_of(const at::Tensor& parameter) {
  auto& entry = state_[parameter.unsafeGetTensorImpl()];
  if (!entry) entry = std::make_unique<SGDParamState>();
  return static_cast<SGDParamState&>(*entry);
}

bool FusedSgd::has(const at::Tensor& parameter) const { return options_of(parameter) != nullptr; }

at::Tensor* FusedSgd::memory_of(const at::Tensor& parameter) {
  return options_of(parameter)->momentum() != 0 ? &state_of(parameter).momentum_buffer() : nullptr;
}

void FusedSgd::update(const at::Tensor& parameter, const Elements& elements) {
  KernelArguments lists{
      .parameters = {elements.values}, .gradients = {elements.gradient}, .momenta = {}};
  if (elements.memory.defined()) lists.momenta.push_back(elements.memory);
  run(lists, *options_of(parameter), elements.is_first);
}

at::Tensor FusedSgd::step(LossClosure closure) {
  const at::NoGradGuard no_grad;
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode enable_grad(true);
    loss = closure();
  }
  if (!fits()) {
    // memory_of() may have created entries with an undefined momentum, which SGD would use.
    for (auto& group : param_groups_) {
      for (auto& parameter : group.params()) {
        const auto entry = state_.find(parameter.unsafeGetTensorImpl());
        if (entry == state_.end()) continue;
        const auto& param_state = static_cast<const SGDParamState&>(*entry->second);
        if (!param_state.momentum_buffer().defined()) state_.erase(entry);
      }
    }
    SGD::step();
    return loss;
  }
  for (auto& group : param_groups_) step_group(group);
  return loss;
}

}  // namespace lockstep
