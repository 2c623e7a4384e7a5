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
#include <type_traits>
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
concept AdamLikeState =
    std::same_as<T, torch::optim::AdamParamState> || std::same_as<T, torch::optim::AdamWParamState>;

template <class T>
concept HasLowPrecisionState = std::same_as<T, torch::optim::SGDParamState> || AdamLikeState<T>;

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

template <class T>
concept AdamLikeOptions =
    std::same_as<T, torch::optim::AdamOptions> || std::same_as<T, torch::optim::AdamWOptions>;

/// The names of the tensors that an optimizer with these options adds for a parameter in its first
/// step.
inline std::vector<const char*> future_fields(const torch::optim::Optimizer& optimizer,
                                              const torch::optim::OptimizerOptions& options,
                                              const at::Tensor& parameter) {
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
  } else if (dynamic_cast<const torch::optim::AdagradOptions*>(&options) != nullptr) {
    add("sum");
  }
  const auto mode = low_precision_of(optimizer);
  const bool adds_own = has_low_precision_state(optimizer, parameter);
  add("master_param", adds_own && mode == LowPrecision::master);
  add("kahan_comp", adds_own && mode == LowPrecision::kahan);
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

/// A class of LibTorch whose options and state are known, also of the fused optimizers.
template <class OwnOptimizer, class OwnOptions, class OwnState>
struct OptimizerClass {
  using Optimizer = OwnOptimizer;
  using Options = OwnOptions;
  using ParamState = OwnState;
};

/// Calls fn with each class that updates each element by itself until it returns true. Returns
/// whether it has.
template <class Function>
bool any_elementwise_class(const Function& fn) {
  using namespace torch::optim;
  return fn(OptimizerClass<SGD, SGDOptions, SGDParamState>{}) ||
         fn(OptimizerClass<Adam, AdamOptions, AdamParamState>{}) ||
         fn(OptimizerClass<AdamW, AdamWOptions, AdamWParamState>{}) ||
         fn(OptimizerClass<RMSprop, RMSpropOptions, RMSpropParamState>{}) ||
         fn(OptimizerClass<Adagrad, AdagradOptions, AdagradParamState>{});
}

/// The same for every class that is known.
template <class Function>
bool any_class(const Function& fn) {
  using namespace torch::optim;
  return any_elementwise_class(fn) || fn(OptimizerClass<LBFGS, LBFGSOptions, LBFGSParamState>{});
}

/// Calls visit() with a state, or options, if they are of the class. Returns whether they are.
template <class Class, class Base, class Field>
bool visit_as(Base& base, const Field& field) {
  using Own = std::conditional_t<std::same_as<Base, torch::optim::OptimizerOptions>,
                                 typename Class::Options, typename Class::ParamState>;
  auto* const own = dynamic_cast<Own*>(&base);
  if (own != nullptr) visit(*own, field);
  return own != nullptr;
}

/// Calls visit() with a state, or options, of any class. Returns whether they are of one.
template <class Base, class Field>
bool visit_known(Base& base, const Field& field) {
  return any_class([&]<class Class>(const Class&) { return visit_as<Class>(base, field); });
}

/// The same for classes that update each element by itself.
template <class Base, class Field>
bool visit_elementwise(Base& base, const Field& field) {
  return any_elementwise_class(
      [&]<class Class>(const Class&) { return visit_as<Class>(base, field); });
}

/// Calls fn with the OptimizerClass of the optimizer. Returns whether it has one.
template <class Function>
bool with_class_of(const torch::optim::Optimizer& optimizer, const Function& fn) {
  return any_class([&]<class Class>(const Class& known) {
    const bool is_own = class_of(optimizer) == typeid(typename Class::Optimizer);
    if (is_own) fn(known);
    return is_own;
  });
}

/// A state without values, of the class that the optimizer gives this parameter. Null for an
/// optimizer of another class.
inline std::unique_ptr<torch::optim::OptimizerParamState> new_state(
    const torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  std::unique_ptr<torch::optim::OptimizerParamState> state;
  with_class_of(optimizer, [&]<class Class>(const Class&) {
    using ParamState = typename Class::ParamState;
    state = std::make_unique<ParamState>();
    if constexpr (HasLowPrecisionState<ParamState>) {
      if (has_low_precision_state(optimizer, parameter))
        state = std::make_unique<LowPrecisionState<ParamState>>();
    }
  });
  return state;
}

/// The tensor of a state's field; null if the state, of an elementwise class, has no such field.
inline at::Tensor* find_tensor(torch::optim::OptimizerParamState& state, std::string_view field) {
  at::Tensor* found = nullptr;
  visit_elementwise(state, [&]<class Value>(std::string_view name, Value& value) {
    if constexpr (std::same_as<Value, at::Tensor>) {
      if (name == field) found = &value;
    }
  });
  return found;
}

/// Whether the state has every tensor that the next step needs.
inline bool is_complete(torch::optim::LBFGSParamState& state) {
  return state.n_iter() == 0 ||
         (state.d().defined() && state.H_diag().defined() && state.prev_flat_grad().defined() &&
          state.old_dirs().size() == state.old_stps().size() &&
          state.old_dirs().size() == state.ro().size());
}

}  // namespace lockstep::detail
