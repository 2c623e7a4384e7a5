#include "parallel/own_step.h"

#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cstddef>
#include <typeinfo>
#include <utility>

#include "core/text.h"
#include "lockstep/distributed_optimizer.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {
namespace {

/// Whether the optimizer is of a class of LibTorch that updates each element by itself. A derived
/// class must declare that it still does.
template <class... Known>
bool is_elementwise(const torch::optim::Optimizer& optimizer) {
  const bool is_known = ((typeid(optimizer) == typeid(Known)) || ...);
  const bool is_derived = ((dynamic_cast<const Known*>(&optimizer) != nullptr) || ...);
  return is_known ||
         (is_derived && dynamic_cast<const ElementwiseOptimizer*>(&optimizer) != nullptr);
}

/// Exchanges the optimizer's parameters with other ones until the end of the scope.
class ParametersScope {
 public:
  ParametersScope(torch::optim::Optimizer& optimizer, ParameterLists& lists)
      : optimizer_(optimizer), lists_(lists) {
    exchange();
  }
  ~ParametersScope() { exchange(); }
  ParametersScope(const ParametersScope&) = delete;
  ParametersScope& operator=(const ParametersScope&) = delete;

 private:
  void exchange() {
    for (std::size_t g = 0; g < lists_.size(); ++g)
      std::swap(optimizer_.param_groups()[g].params(), lists_[g]);
  }

  torch::optim::Optimizer& optimizer_;
  ParameterLists& lists_;
};

}  // namespace

ParameterLists parameters_of(const torch::optim::Optimizer& optimizer) {
  ParameterLists lists;
  for (const auto& group : optimizer.param_groups()) lists.push_back(group.params());
  return lists;
}

void step_on(torch::optim::Optimizer& optimizer, ParameterLists& lists) {
  const ParametersScope scope(optimizer, lists);
  optimizer.step();
}

void check_elementwise(const torch::optim::Optimizer& optimizer, const char* option) {
  if (is_elementwise<torch::optim::SGD, torch::optim::Adam, torch::optim::AdamW,
                     torch::optim::RMSprop, torch::optim::Adagrad>(optimizer)) {
    return;
  }
  throw InvalidArgument(
      concat("DistributedOptimizer: ", option, ": got ", c10::demangle(typeid(optimizer).name()),
             ", expected an optimizer that updates each element by itself: SGD, Adam, AdamW, "
             "RMSprop or Adagrad of torch::optim, or FusedSgd, FusedAdam or FusedAdamW"),
      {.operation = "DistributedOptimizer"});
}

}  // namespace lockstep::detail
