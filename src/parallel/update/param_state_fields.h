#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <concepts>
#include <cstdint>
#include <memory>

/// The fields of the state that LibTorch's optimizers keep of a parameter. visit() calls
/// field(name, value) for each. LibTorch and Python use the same names.
namespace lockstep::inline v0_2::detail {

/// The state that FusedOptimizer adds to LibTorch's for a bfloat16 or float16 parameter. Python's
/// torch.optim has no such fields: the names are those of Transformer Engine and of optimi.
struct LowPrecisionFields {
  at::Tensor master_param;   ///< LowPrecision::master: the parameter in float32
  at::Tensor kahan_comp;     ///< LowPrecision::kahan: what the parameter's rounding lost
  std::int64_t updates = 0;  ///< of SGD, which has no step count of its own
};

template <class T>
concept HasLowPrecisionState = std::same_as<T, torch::optim::SGDParamState> ||
    std::same_as<T, torch::optim::AdamParamState> || std::same_as<T, torch::optim::AdamWParamState>;

template <HasLowPrecisionState ParamState>
struct LowPrecisionState : ParamState, LowPrecisionFields {
  LowPrecisionState() = default;
  explicit LowPrecisionState(const ParamState& state) : ParamState(state) {}

  std::unique_ptr<torch::optim::OptimizerParamState> clone() const override {
    return std::make_unique<LowPrecisionState>(*this);
  }
};

template <class Field>
void visit_low_precision(torch::optim::OptimizerParamState& state, const Field& field) {
  auto* const fields = dynamic_cast<LowPrecisionFields*>(&state);
  if (fields == nullptr) return;
  field("master_param", fields->master_param);
  field("kahan_comp", fields->kahan_comp);
}

/// An integer that Python stores as an int. Python stores the number of steps of other optimizers
/// as a tensor.
template <class Value>
struct Count {
  Value& value;
};
template <class Value>
Count(Value&) -> Count<Value>;

template <class T>
concept AdamLikeState =
    std::same_as<T, torch::optim::AdamParamState> || std::same_as<T, torch::optim::AdamWParamState>;

template <class Field>
void visit(torch::optim::SGDParamState& state, const Field& field) {
  field("momentum_buffer", state.momentum_buffer());
  if (auto* const fields = dynamic_cast<LowPrecisionFields*>(&state))
    field("step", fields->updates);
  visit_low_precision(state, field);
}

template <AdamLikeState ParamState, class Field>
void visit(ParamState& state, const Field& field) {
  field("step", state.step());
  field("exp_avg", state.exp_avg());
  field("exp_avg_sq", state.exp_avg_sq());
  field("max_exp_avg_sq", state.max_exp_avg_sq());
  visit_low_precision(state, field);
}

template <class Field>
void visit(torch::optim::RMSpropParamState& state, const Field& field) {
  field("step", state.step());
  field("square_avg", state.square_avg());
  field("momentum_buffer", state.momentum_buffer());
  field("grad_avg", state.grad_avg());
}

template <class Field>
void visit(torch::optim::AdagradParamState& state, const Field& field) {
  field("step", state.step());
  field("sum", state.sum());
}

/// LBFGS has one state for all parameters, under the first. Its tensors are flat, or numbers. Each
/// step computes `al` anew. Before the first iteration, the other fields have no meaning.
template <class Field>
void visit(torch::optim::LBFGSParamState& state, const Field& field) {
  field("func_evals", Count{state.func_evals()});
  field("n_iter", Count{state.n_iter()});
  if (state.n_iter() == 0) return;
  field("t", state.t());
  field("prev_loss", state.prev_loss());
  field("d", state.d());
  field("H_diag", state.H_diag());
  field("prev_flat_grad", state.prev_flat_grad());
  field("old_dirs", state.old_dirs());
  field("old_stps", state.old_stps());
  field("ro", state.ro());
}

/// Calls visit() with a state as the one of these classes that it has. Returns whether it has one.
template <class... Known, class Field>
bool visit_as(torch::optim::OptimizerParamState& state, const Field& field) {
  const auto try_one = [&](auto* known) {
    if (known != nullptr) visit(*known, field);
    return known != nullptr;
  };
  return (try_one(dynamic_cast<Known*>(&state)) || ...);
}

/// The same for the states of the optimizers that update each element by itself.
template <class Field>
bool visit_elementwise(torch::optim::OptimizerParamState& state, const Field& field) {
  return visit_as<torch::optim::SGDParamState, torch::optim::AdamParamState,
                  torch::optim::AdamWParamState, torch::optim::RMSpropParamState,
                  torch::optim::AdagradParamState>(state, field);
}

}  // namespace lockstep::detail
