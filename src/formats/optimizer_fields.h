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
#include <typeinfo>
#include <vector>

#include "lockstep/low_precision_optimizer.h"
#include "parallel/update/param_state_fields.h"

/// The fields of the options of LibTorch's optimizers. visit() calls field(name, value) for each.
/// LibTorch and Python use the same names.
namespace lockstep::inline v0_2::detail {

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

/// Whether a state has what the optimizer's next update of the parameter reads.
inline bool has_low_precision_fields(const torch::optim::Optimizer& optimizer,
                                     const at::Tensor& parameter,
                                     torch::optim::OptimizerParamState& state) {
  if (!has_low_precision_state(optimizer, parameter)) return true;
  const auto& fields = dynamic_cast<LowPrecisionFields&>(state);
  switch (low_precision_of(optimizer)) {
    case LowPrecision::master:
      return fields.master_param.defined();
    case LowPrecision::kahan:
      return fields.kahan_comp.defined();
    default:
      return true;
  }
}

template <class T>
concept AdamLikeOptions =
    std::same_as<T, torch::optim::AdamOptions> || std::same_as<T, torch::optim::AdamWOptions>;

/// The name of the tensor that a mode adds to the state of a parameter; null for none.
inline const char* future_field(LowPrecision mode) {
  if (mode == LowPrecision::master) return "master_param";
  return mode == LowPrecision::kahan ? "kahan_comp" : nullptr;
}

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
