#include "parallel/update/own_step.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Type.h>

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <unordered_map>
#include <utility>

#include "core/enum_names.h"
#include "core/numeric/digest.h"
#include "core/operation_error.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "lockstep/low_precision_optimizer.h"
#include "parallel/reducer/gradient.h"
#include "parallel/update/optimizer_fields.h"

namespace lockstep::inline v0_2::detail {

using torch::optim::OptimizerParamState;

namespace {

/// All names of a parameter, or its sizes where it has none.
std::string describe_parameter(const at::Tensor& parameter, const std::vector<NamedTensor>& named) {
  std::string names;
  for (const auto& [name, tensor] : named) {
    if (tensor.is_same(parameter)) names += concat(names.empty() ? "'" : " = '", name, '\'');
  }
  return names.empty() ? concat("a parameter of sizes ", parameter.sizes())
                       : concat("parameter ", names);
}

/// The tensors of a state that its optimizer uses.
std::vector<at::Tensor*> defined_tensors_of(OptimizerParamState& state) {
  auto tensors = tensors_of(state);
  std::erase_if(tensors, [](const at::Tensor* tensor) { return !tensor->defined(); });
  return tensors;
}

/// Adds to the number of updates that a state counts. No effect on a state that counts none.
void add_steps(OptimizerParamState& state, std::int64_t steps) {
  visit_elementwise(state, [&]<class Value>(const char* /*name*/, Value& value) {
    if constexpr (std::is_same_v<Value, std::int64_t>) value += steps;
  });
}

}  // namespace

std::vector<at::Tensor> all_parameters(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> all;
  for (const auto& group : optimizer.param_groups())
    all.insert(all.end(), group.params().begin(), group.params().end());
  return all;
}

std::vector<UpdateOption> options_of(torch::optim::Optimizer& optimizer) {
  std::vector<UpdateOption> options;
  auto& groups = optimizer.param_groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    visit_elementwise(groups[g].options(), [&]<class Value>(const char* name, const Value& value) {
      if constexpr (std::is_arithmetic_v<Value>) {
        options.push_back({.group = g, .name = name, .value = static_cast<double>(value)});
      } else {
        const auto& [first, second] = value;
        options.push_back({.group = g, .name = name, .value = first});
        options.push_back({.group = g, .name = name, .value = second});
      }
    });
  }
  return options;
}

OwnStepCheck::Marks marks_of(torch::optim::Optimizer& optimizer) {
  OwnStepCheck::Marks marks;
  const auto add = [](std::uint64_t& mark, std::uint64_t next) {
    const std::array input{mark, next};
    mark = digest(std::as_bytes(std::span(input)));
  };
  for (const auto& parameter : all_parameters(optimizer)) {
    if (!parameter.requires_grad()) continue;
    add(marks.parameters, digest_of_mean(parameter));
    auto* const state = find_state(optimizer.state(), parameter);
    if (state == nullptr) continue;
    visit_elementwise(*state, [&]<class Value>(const char* /*name*/, const Value& value) {
      if constexpr (std::is_same_v<Value, std::int64_t>) {
        add(marks.state, static_cast<std::uint64_t>(value));
      } else if constexpr (std::is_same_v<Value, at::Tensor>) {
        if (value.defined()) add(marks.state, digest_of_mean(value));
      }
    });
  }
  return marks;
}

OptimizerParamState* find_state(const ParamStates& states, const at::Tensor& parameter) {
  const auto found = states.find(parameter.unsafeGetTensorImpl());
  return found == states.end() ? nullptr : found->second.get();
}

std::unique_ptr<OptimizerParamState> take_state(ParamStates& states, const at::Tensor& parameter) {
  const auto found = states.find(parameter.unsafeGetTensorImpl());
  if (found == states.end()) return nullptr;
  auto state = std::move(found->second);
  states.erase(found);
  return state;
}

void step_on(torch::optim::Optimizer& optimizer, ParameterLists& lists) {
  const auto exchange = [&] {
    for (std::size_t g = 0; g < lists.size(); ++g)
      std::swap(optimizer.param_groups()[g].params(), lists[g]);
  };
  exchange();
  try {
    optimizer.step();
  } catch (...) {
    exchange();
    throw;
  }
  exchange();
}

std::vector<at::Tensor*> tensors_of(OptimizerParamState& state) {
  std::vector<at::Tensor*> tensors;
  visit_elementwise(state, [&]<class Value>(const char* /*name*/, Value& value) {
    if constexpr (std::is_same_v<Value, at::Tensor>) tensors.push_back(&value);
  });
  return tensors;
}

void check_elementwise(const torch::optim::Optimizer& optimizer, const char* option) {
  // A class derived from one of LibTorch must declare that it still updates each element by itself.
  const bool declares = dynamic_cast<const ElementwiseOptimizer*>(&optimizer) != nullptr;
  const bool is_elementwise = any_elementwise_class([&]<class Class>(const Class&) {
    using Known = typename Class::Optimizer;
    return typeid(optimizer) == typeid(Known) ||
           (declares && dynamic_cast<const Known*>(&optimizer) != nullptr);
  });
  if (is_elementwise) return;
  throw InvalidArgument(
      concat("DistributedOptimizer: ", option, ": got ", c10::demangle(typeid(optimizer).name()),
             ", expected an optimizer that updates each element by itself: SGD, Adam, AdamW, "
             "RMSprop or Adagrad of torch::optim, or FusedSgd, FusedAdam or FusedAdamW"),
      {.operation = "DistributedOptimizer"});
}

void check_listed_once(const torch::optim::Optimizer& optimizer, const char* operation,
                       const std::vector<NamedTensor>& named) {
  std::unordered_map<const void*, std::size_t> positions;
  for (const auto& parameter : all_parameters(optimizer)) {
    const auto position = positions.size();
    const auto [first, is_new] = positions.emplace(parameter.unsafeGetTensorImpl(), position);
    if (is_new) continue;
    throw_invalid(operation, "got ", describe_parameter(parameter, named), " twice, as #",
                  first->second, " and #", position,
                  " of the optimizer, expected each parameter once: construct the optimizer with "
                  "lockstep::parameters(model)");
  }
}

std::optional<ElementwiseStep::Place> ElementwiseStep::place_of(const at::Tensor& parameter) const {
  return find_place(optimizer_, parameter, places_);
}

bool ElementwiseStep::has(const at::Tensor& parameter) const {
  return place_of(parameter).has_value();
}

std::vector<at::Tensor*> ElementwiseStep::state_of(const at::Tensor& parameter) {
  if (auto* state = find_state(optimizer_.state(), parameter)) return defined_tensors_of(*state);
  auto& state = first_states_[parameter.unsafeGetTensorImpl()];
  state = new_state(optimizer_, parameter);
  std::vector<at::Tensor*> tensors;
  const auto& options = optimizer_.param_groups()[place_of(parameter)->group].options();
  for (const char* field : future_fields(optimizer_, options, parameter))
    tensors.push_back(find_tensor(*state, field));
  if (tensors.empty()) first_states_.erase(parameter.unsafeGetTensorImpl());
  return tensors;
}

void ElementwiseStep::begin_update(const at::Tensor& parameter) {
  if (auto first = first_states_.extract(parameter.unsafeGetTensorImpl()))
    optimizer_.state()[parameter.unsafeGetTensorImpl()] = std::move(first.mapped());
  if (auto* state = find_state(optimizer_.state(), parameter)) add_steps(*state, 1);
}

void ElementwiseStep::update(const at::Tensor& parameter, const Elements& elements) {
  const at::NoGradGuard no_grad;
  const auto& values = elements.values;
  if (auto* whole = find_state(optimizer_.state(), parameter);
      whole != nullptr && !elements.is_first) {
    auto state = whole->clone();
    const auto tensors = defined_tensors_of(*state);
    for (std::size_t k = 0; k < tensors.size(); ++k) *tensors[k] = elements.state[k];
    add_steps(*state, -1);  // the step adds it
    optimizer_.state()[values.unsafeGetTensorImpl()] = std::move(state);
  }
  ParameterLists lists(optimizer_.param_groups().size());
  lists[place_of(parameter)->group].push_back(values);
  values.mutable_grad() = elements.gradient;
  step_on(optimizer_, lists);
  values.mutable_grad().reset();
  const auto updated = take_state(optimizer_.state(), values);
  if (updated == nullptr) return;
  const auto tensors = defined_tensors_of(*updated);
  for (std::size_t k = 0; k < tensors.size(); ++k) {
    // The first step makes tensors of its own.
    if (tensors[k]->const_data_ptr() == elements.state[k].const_data_ptr()) continue;
    elements.state[k].copy_(*tensors[k]);
  }
}

}  // namespace lockstep::detail

namespace lockstep::inline v0_2 {
namespace {

constexpr detail::EnumNames<LowPrecision::kahan> low_precisions("nearest", "master", "stochastic",
                                                                "kahan");

}  // namespace

std::string_view name(LowPrecision mode) { return low_precisions.of(mode); }

LowPrecision parse_low_precision(std::string_view text) {
  return detail::as_operation("parse_low_precision",
                              [&] { return low_precisions.parse("parse_low_precision:", text); });
}

bool LowPrecisionOptimizer::computes_in_float32(const at::Tensor& parameter) const {
  const auto dtype = parameter.scalar_type();
  return low_precision_ != LowPrecision::nearest && (dtype == at::kBFloat16 || dtype == at::kHalf);
}

at::ScalarType LowPrecisionOptimizer::state_dtype(const at::Tensor& parameter) const {
  const bool is_float = low_precision_ == LowPrecision::master && computes_in_float32(parameter);
  return is_float ? at::kFloat : parameter.scalar_type();
}

void LowPrecisionOptimizer::check_shareable() const {
  if (low_precision_ == LowPrecision::nearest) return;
  detail::throw_invalid("DistributedOptimizer",
                        "share_memory: got an optimizer with LowPrecision::", name(low_precision_),
                        ", expected LowPrecision::nearest: use shard = Shard::optimizer or "
                        "Shard::gradients, which divide its state, too");
}

}  // namespace lockstep
