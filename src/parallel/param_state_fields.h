#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <concepts>

/// The fields of the state that LibTorch's optimizers keep of a parameter. visit() calls
/// field(name, value) for each. LibTorch and Python use the same names.
namespace lockstep::inline v0_2::detail {

template <class T>
concept AdamLikeState =
    std::same_as<T, torch::optim::AdamParamState> || std::same_as<T, torch::optim::AdamWParamState>;

template <class Field>
void visit(torch::optim::SGDParamState& state, const Field& field) {
  field("momentum_buffer", state.momentum_buffer());
}

template <AdamLikeState ParamState, class Field>
void visit(ParamState& state, const Field& field) {
  field("step", state.step());
  field("exp_avg", state.exp_avg());
  field("exp_avg_sq", state.exp_avg_sq());
  field("max_exp_avg_sq", state.max_exp_avg_sq());
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

}  // namespace lockstep::detail
