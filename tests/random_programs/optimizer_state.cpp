#include "tests/random_programs/optimizer_state.h"

namespace lockstep::random_programs {
namespace {

/// A copy whose tensors are copies, too.
std::unique_ptr<torch::optim::OptimizerParamState> copy_of(
    const torch::optim::OptimizerParamState& state) {
  const auto clone = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.clone() : tensor;
  };
  auto copy = state.clone();
  if (auto* sgd = dynamic_cast<torch::optim::SGDParamState*>(copy.get())) {
    sgd->momentum_buffer(clone(sgd->momentum_buffer()));
  } else if (auto* adam = dynamic_cast<torch::optim::AdamParamState*>(copy.get())) {
    adam->exp_avg(clone(adam->exp_avg()));
    adam->exp_avg_sq(clone(adam->exp_avg_sq()));
  }
  return copy;
}

}  // namespace

OptimizerState state_of(Rank::Holding& holding) {
  OptimizerState copy;
  const auto& parameters = holding.model->unique_parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto found = holding.optimizer->state().find(parameters[i].unsafeGetTensorImpl());
    if (found != holding.optimizer->state().end()) copy.emplace(i, copy_of(*found->second));
  }
  return copy;
}

void load_state(Rank::Holding& holding, const OptimizerState& saved) {
  holding.optimizer->state().clear();
  for (const auto& [i, state] : saved) {
    const auto& parameter = holding.model->unique_parameters()[i];
    holding.optimizer->state()[parameter.unsafeGetTensorImpl()] = copy_of(*state);
  }
}

}  // namespace lockstep::random_programs
