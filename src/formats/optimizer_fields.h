#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <concepts>
#include <typeinfo>
#include <vector>

#include "lockstep/fused_optimizers.h"
#include "parallel/param_state_fields.h"

/// The fields of the options of LibTorch's optimizers. visit() calls field(name, value) for each.
/// LibTorch and Python use the same names.
namespace lockstep::inline v0_2::detail {

/// The LibTorch class whose options and state an optimizer has. For FusedSgd it is SGD, for
/// FusedAdam Adam, for FusedAdamW AdamW.
inline const std::type_info& class_of(const torch::optim::Optimizer& optimizer) {
  const auto& own = typeid(optimizer);
  if (own == typeid(FusedSgd)) return typeid(torch::optim::SGD);
  if (own == typeid(FusedAdam)) return typeid(torch::optim::Adam);
  if (own == typeid(FusedAdamW)) return typeid(torch::optim::AdamW);
  return own;
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

}  // namespace lockstep::detail
