#include "parallel/update/own_step.h"

#include <c10/util/Type.h>

#include <cstddef>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <unordered_map>
#include <utility>

#include "core/operation_error.h"
#include "core/text.h"
#include "lockstep/distributed_optimizer.h"
#include "lockstep/error.h"
#include "parallel/update/param_state_fields.h"

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

/// All names of a parameter, or its sizes where it has none.
std::string describe_parameter(const at::Tensor& parameter, const std::vector<NamedTensor>& named) {
  std::string names;
  for (const auto& [name, tensor] : named) {
    if (tensor.is_same(parameter)) names += concat(names.empty() ? "'" : " = '", name, '\'');
  }
  return names.empty() ? concat("a parameter of sizes ", parameter.sizes())
                       : concat("parameter ", names);
}

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

std::vector<at::Tensor*> tensors_of(torch::optim::OptimizerParamState& state) {
  std::vector<at::Tensor*> tensors;
  visit_elementwise(state, [&]<class Value>(const char* /*name*/, Value& value) {
    if constexpr (std::is_same_v<Value, at::Tensor>) tensors.push_back(&value);
  });
  return tensors;
}

void add_steps(torch::optim::OptimizerParamState& state, std::int64_t steps) {
  visit_elementwise(state, [&]<class Value>(const char* /*name*/, Value& value) {
    if constexpr (std::is_same_v<Value, std::int64_t>) value += steps;
  });
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

void check_listed_once(const torch::optim::Optimizer& optimizer, const char* operation,
                       const std::vector<NamedTensor>& named) {
  std::unordered_map<const void*, std::size_t> positions;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      const auto position = positions.size();
      const auto [first, is_new] = positions.emplace(parameter.unsafeGetTensorImpl(), position);
      if (is_new) continue;
      throw_invalid(operation, "got ", describe_parameter(parameter, named), " twice, as #",
                    first->second, " and #", position,
                    " of the optimizer, expected each parameter once: construct the optimizer with "
                    "lockstep::parameters(model)");
    }
  }
}

}  // namespace lockstep::detail
