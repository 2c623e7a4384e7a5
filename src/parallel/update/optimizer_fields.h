#pragma once

#include <ATen/ops/empty.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <string_view>
#include <typeinfo>
#include <vector>

#include "lockstep/low_precision_optimizer.h"

/// The description of LibTorch's optimizers, for everything that reads or writes their options and
/// state. visit() calls field(name, value) for each field of the options, or of a parameter's
/// state. LibTorch and Python use the same names.
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

/// Calls visit() with a state, or options, as the one of these classes that it has. Returns whether
/// it has one.
template <class... Known, class Base, class Field>
bool visit_as(Base& state, const Field& field) {
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

/// The fused optimizer that this is; null for other classes.
inline const LowPrecisionOptimizer* fused(const torch::optim::Optimizer& optimizer) {
  return dynamic_cast<const LowPrecisionOptimizer*>(&optimizer);
}

/// The LibTorch class whose options and state an optimizer has.
inline const std::type_info& class_of(const torch::optim::Optimizer& optimizer) {
  const auto* const own = fused(optimizer);
  return own != nullptr ? own->libtorch_class() : typeid(optimizer);
}

inline LowPrecision low_precision_of(const torch::optim::Optimizer& optimizer) {
  const auto* const own = fused(optimizer);
  return own != nullptr ? own->low_precision() : LowPrecision::nearest;
}

/// Whether the optimizer's state of a parameter is a LowPrecisionState.
inline bool has_low_precision_state(const torch::optim::Optimizer& optimizer,
                                    const at::Tensor& parameter) {
  const auto* const own = fused(optimizer);
  return own != nullptr && own->computes_in_float32(parameter);
}

/// A tensor of the sizes and dtype of the optimizer's state of a parameter, without memory.
inline at::Tensor state_like(const torch::optim::Optimizer& optimizer,
                             const at::Tensor& parameter) {
  const auto* const own = fused(optimizer);
  if (own == nullptr) return parameter;
  return at::empty(parameter.sizes(), parameter.options()
                                          .dtype(own->state_dtype(parameter))
                                          .device(at::kMeta)
                                          .requires_grad(false));
}

/// The name of the tensor that the optimizer adds to a parameter's state for its LowPrecision; null
/// for none.
inline const char* low_precision_field(const torch::optim::Optimizer& optimizer,
                                       const at::Tensor& parameter) {
  if (!has_low_precision_state(optimizer, parameter)) return nullptr;
  const auto mode = low_precision_of(optimizer);
  if (mode == LowPrecision::master) return "master_param";
  return mode == LowPrecision::kahan ? "kahan_comp" : nullptr;
}

/// Whether a state has what the optimizer's next update of the parameter reads.
inline bool has_low_precision_fields(const torch::optim::Optimizer& optimizer,
                                     const at::Tensor& parameter,
                                     torch::optim::OptimizerParamState& state) {
  const char* const needed = low_precision_field(optimizer, parameter);
  bool has_needed = needed == nullptr;
  visit_low_precision(state, [&](std::string_view name, const at::Tensor& value) {
    has_needed = has_needed || (name == needed && value.defined());
  });
  return has_needed;
}

template <class T>
concept AdamLikeOptions =
    std::same_as<T, torch::optim::AdamOptions> || std::same_as<T, torch::optim::AdamWOptions>;

/// The names of the tensors that an optimizer with these options adds for a parameter in its first
/// step.
inline std::vector<const char*> future_fields(const torch::optim::OptimizerOptions& options) {
  std::vector<const char*> fields;
  const auto add = [&](const char* name, bool wanted = true) {
    if (wanted) fields.push_back(name);
  };
  const auto add_adam = [&](const AdamLikeOptions auto& adam) {
    add("exp_avg");
    add("exp_avg_sq");
    add("max_exp_avg_sq", adam.amsgrad());
  };
  if (const auto* sgd = dynamic_cast<const torch::optim::SGDOptions*>(&options)) {
    add("momentum_buffer", sgd->momentum() != 0);
  } else if (const auto* adam = dynamic_cast<const torch::optim::AdamOptions*>(&options)) {
    add_adam(*adam);
  } else if (const auto* adamw = dynamic_cast<const torch::optim::AdamWOptions*>(&options)) {
    add_adam(*adamw);
  } else if (const auto* rmsprop = dynamic_cast<const torch::optim::RMSpropOptions*>(&options)) {
    add("square_avg");
    add("momentum_buffer", rmsprop->momentum() > 0);
    add("grad_avg", rmsprop->centered());
  }
  return fields;
}

template <class Field>
void visit(torch::optim::SGDOptions& options, const Field& field) {
  field("lr", options.lr());
  field("momentum", options.momentum());
  field("dampening", options.dampening());
  field("weight_decay", options.weight_decay());
  field("nesterov", options.nesterov());
}

template <AdamLikeOptions Options, class Field>
void visit(Options& options, const Field& field) {
  field("lr", options.lr());
  field("betas", options.betas());
  field("eps", options.eps());
  field("weight_decay", options.weight_decay());
  field("amsgrad", options.amsgrad());
}

template <class Field>
void visit(torch::optim::RMSpropOptions& options, const Field& field) {
  field("lr", options.lr());
  field("alpha", options.alpha());
  field("eps", options.eps());
  field("weight_decay", options.weight_decay());
  field("momentum", options.momentum());
  field("centered", options.centered());
}

template <class Field>
void visit(torch::optim::AdagradOptions& options, const Field& field) {
  field("lr", options.lr());
  field("lr_decay", options.lr_decay());
  field("weight_decay", options.weight_decay());
  field("initial_accumulator_value", options.initial_accumulator_value());
  field("eps", options.eps());
}

template <class Field>
void visit(torch::optim::LBFGSOptions& options, const Field& field) {
  field("lr", options.lr());
  field("max_iter", Count{options.max_iter()});
  field("max_eval", Count{options.max_eval()});
  field("tolerance_grad", options.tolerance_grad());
  field("tolerance_change", options.tolerance_change());
  field("history_size", Count{options.history_size()});
  field("line_search_fn", options.line_search_fn());
}

/// A tensor of the shape and dtype of all parameters of LBFGS one after another, without memory.
inline at::Tensor flat_shape(const std::vector<at::Tensor>& parameters) {
  std::int64_t elements = 0;
  for (const auto& parameter : parameters) elements += parameter.numel();
  return at::empty({elements}, parameters.at(0).options().device(at::kMeta));
}

/// A class of LibTorch whose options and state are known, and those fused optimizers that have
/// them.
template <class Own, class OwnState>
struct OptimizerClass {
  using Options = Own;
  using ParamState = OwnState;

  /// A state without values, of the class that the optimizer gives this parameter.
  static std::unique_ptr<ParamState> new_state(const torch::optim::Optimizer& optimizer,
                                               const at::Tensor& parameter) {
    if constexpr (HasLowPrecisionState<ParamState>) {
      if (has_low_precision_state(optimizer, parameter))
        return std::make_unique<LowPrecisionState<ParamState>>();
    }
    return std::make_unique<ParamState>();
  }
};

/// Calls fn with the OptimizerClass of the optimizer. Returns whether it has one.
template <class Function>
bool with_class_of(const torch::optim::Optimizer& optimizer, const Function& fn) {
  using namespace torch::optim;
  const auto& own = class_of(optimizer);
  const auto try_one = [&](const std::type_info& type, const auto& known) {
    if (own == type) fn(known);
    return own == type;
  };
  return try_one(typeid(SGD), OptimizerClass<SGDOptions, SGDParamState>{}) ||
         try_one(typeid(Adam), OptimizerClass<AdamOptions, AdamParamState>{}) ||
         try_one(typeid(AdamW), OptimizerClass<AdamWOptions, AdamWParamState>{}) ||
         try_one(typeid(RMSprop), OptimizerClass<RMSpropOptions, RMSpropParamState>{}) ||
         try_one(typeid(Adagrad), OptimizerClass<AdagradOptions, AdagradParamState>{}) ||
         try_one(typeid(LBFGS), OptimizerClass<LBFGSOptions, LBFGSParamState>{});
}

/// Whether the state has every tensor that the next step needs.
inline bool is_complete(torch::optim::LBFGSParamState& state) {
  if (state.n_iter() == 0) return true;
  return state.d().defined() && state.H_diag().defined() && state.prev_flat_grad().defined() &&
         state.old_dirs().size() == state.old_stps().size() &&
         state.old_dirs().size() == state.ro().size();
}

}  // namespace lockstep::detail
