#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/distributed_optimizer.h"
#include "lockstep/model_view.h"
#include "parallel/reducer/reducer.h"

namespace lockstep::inline v0_2::detail {

/// Parameters of an optimizer, per parameter group.
using ParameterLists = std::vector<std::vector<at::Tensor>>;

/// The parameters of all groups.
std::vector<at::Tensor> all_parameters(const torch::optim::Optimizer& optimizer);

/// The options of all parameter groups that have the options of a LibTorch class.
std::vector<UpdateOption> options_of(torch::optim::Optimizer& optimizer);

/// The marks of the optimizer's last step.
OwnStepCheck::Marks marks_of(torch::optim::Optimizer& optimizer);

/// An optimizer's state, by parameter.
using ParamStates = std::remove_cvref_t<decltype(std::declval<torch::optim::Optimizer>().state())>;

/// The state of a parameter; null if there is none. take_state() removes it.
torch::optim::OptimizerParamState* find_state(const ParamStates& states,
                                              const at::Tensor& parameter);
std::unique_ptr<torch::optim::OptimizerParamState> take_state(ParamStates& states,
                                                              const at::Tensor& parameter);

/// The optimizer's own step on other tensors, such as parts of its parameters. Each is updated with
/// the options of its parameter group, its own gradient, and the state that the optimizer has of
/// it. lists: one for each parameter group.
void step_on(torch::optim::Optimizer& optimizer, ParameterLists& lists);

/// The tensors of the state that LibTorch's optimizers keep of a parameter, in a fixed order. Some
/// may be undefined. Empty for the state of an optimizer that does not update each element by
/// itself.
std::vector<at::Tensor*> tensors_of(torch::optim::OptimizerParamState& state);

/// Throws: InvalidArgument unless the optimizer is of a class whose own step updates each element
/// by itself. option is the one that requires it.
void check_elementwise(const torch::optim::Optimizer& optimizer, const char* option);

/// Throws: InvalidArgument if the optimizer has a parameter twice, in one group or in two, because
/// its step would update that parameter twice. named: gives the parameter's names.
void check_listed_once(const torch::optim::Optimizer& optimizer, const char* operation,
                       const std::vector<NamedTensor>& named = {});

/// The place of a parameter in an optimizer's groups, which the program may change between steps;
/// nullopt if the optimizer lacks it. places: a cache. Without it, a step would take quadratic time
/// in the number of parameters.
template <class Place>
std::optional<Place> find_place(const torch::optim::Optimizer& optimizer,
                                const at::Tensor& parameter,
                                std::unordered_map<const void*, Place>& places) {
  const auto& groups = optimizer.param_groups();
  const auto is_at = [&](const Place& place) {
    return place.group < groups.size() && place.index < groups[place.group].params().size() &&
           groups[place.group].params()[place.index].is_same(parameter);
  };
  const auto entry = places.find(parameter.unsafeGetTensorImpl());
  if (entry != places.end() && is_at(entry->second)) return entry->second;
  Place place;
  for (; place.group < groups.size(); ++place.group) {
    for (place.index = 0; place.index < groups[place.group].params().size(); ++place.index) {
      if (!is_at(place)) continue;
      places[parameter.unsafeGetTensorImpl()] = place;
      return place;
    }
  }
  return std::nullopt;
}

/// An optimizer of torch::optim as an ElementwiseOptimizer. update() runs the optimizer's own step
/// on the elements; the optimizer has the state of whole parameters.
class ElementwiseStep final : public ElementwiseOptimizer {
 public:
  /// check_elementwise() must accept the optimizer, which must outlive this object.
  explicit ElementwiseStep(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {}

  bool has(const at::Tensor& parameter) const override;
  /// Of a parameter without state, the tensors that begin_update() adds to the optimizer's state.
  std::vector<at::Tensor*> state_of(const at::Tensor& parameter) override;
  void begin_update(const at::Tensor& parameter) override;
  void update(const at::Tensor& parameter, const Elements& elements) override;

 private:
  using ParamState = torch::optim::OptimizerParamState;
  struct Place {
    std::size_t group = 0;
    std::size_t index = 0;  ///< in the group's params()
  };

  std::optional<Place> place_of(const at::Tensor& parameter) const;

  torch::optim::Optimizer& optimizer_;
  /// States of parameters whose first update has not begun.
  std::unordered_map<const void*, std::unique_ptr<ParamState>> first_states_;
  mutable std::unordered_map<const void*, Place> places_;  ///< of find_place()
};

}  // namespace lockstep::detail
