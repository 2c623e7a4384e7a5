#include "parallel/param_state_tensors.h"

#include <type_traits>

#include "parallel/param_state_fields.h"

namespace lockstep::inline v0_2::detail {
namespace {

using torch::optim::OptimizerParamState;

template <class... Known, class Field>
void visit_as(OptimizerParamState& state, const Field& field) {
  const auto try_one = [&](auto* known) {
    if (known != nullptr) visit(*known, field);
  };
  (try_one(dynamic_cast<Known*>(&state)), ...);
}

/// Calls field(name, value) for each field of a state of unknown class.
template <class Field>
void visit_any(OptimizerParamState& state, const Field& field) {
  visit_as<torch::optim::SGDParamState, torch::optim::AdamParamState, torch::optim::AdamWParamState,
           torch::optim::RMSpropParamState, torch::optim::AdagradParamState>(state, field);
}

}  // namespace

std::vector<at::Tensor*> tensors_of(OptimizerParamState& state) {
  std::vector<at::Tensor*> tensors;
  visit_any(state, [&]<class Value>(const char* /*name*/, Value& value) {
    if constexpr (std::is_same_v<Value, at::Tensor>) tensors.push_back(&value);
  });
  return tensors;
}

void add_steps(OptimizerParamState& state, std::int64_t steps) {
  visit_any(state, [&]<class Value>(const char* /*name*/, Value& value) {
    if constexpr (std::is_same_v<Value, std::int64_t>) value += steps;
  });
}

}  // namespace lockstep::detail
