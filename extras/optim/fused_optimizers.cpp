#include "lockstep/fused_optimizers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "core/operation_error.h"
#include "extras/optim/low_precision_update.h"
#include "group/tensors.h"
#include "parallel/update/optimizer_fields.h"
#include "parallel/update/own_step.h"

namespace lockstep::inline v0_2 {
namespace {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

/// Arguments of one call of a kernel: one element of each list for each parameter.
struct KernelArguments {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;
  std::array<std::vector<at::Tensor>, 3> state;  ///< in the order of Kernel::tensors()
  std::vector<at::Tensor> steps;                 ///< Adam: the number of this update, from 1
};

/// The parts in which the optimizers differ.
template <class Base>
struct Kernel;

template <>
struct Kernel<torch::optim::SGD> {
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;
  static constexpr bool counts_steps = false;

  static bool has_state(const Options& options) { return options.momentum() != 0; }
  static std::vector<at::Tensor*> tensors(State& state, const Options& /*options*/) {
    return {&state.momentum_buffer()};
  }
  /// is_first: the momenta are not used but set.
  static void run(const KernelArguments& lists, const Options& options, bool is_first) {
    const auto& first = lists.parameters.front();
    if (first.is_cpu() && at::isReducedFloatingType(first.scalar_type()))
      return run_in_float32(lists, options, is_first);
    at::_fused_sgd_(lists.parameters, lists.gradients, lists.state[0], options.weight_decay(),
                    options.momentum(), options.lr(), options.dampening(), options.nesterov(),
                    false, is_first);
  }

 private:
  /// LibTorch's kernel for the CPU does not update whole vectors of float16 and bfloat16.
  /// Source: https://github.com/pytorch/pytorch/issues/191763
  static void run_in_float32(const KernelArguments& lists, const Options& options, bool is_first) {
    for (std::size_t i = 0; i < lists.parameters.size(); ++i) {
      KernelArguments one{.parameters = {lists.parameters[i].to(at::kFloat)},
                          .gradients = {lists.gradients[i].to(at::kFloat)},
                          .state = {},
                          .steps = {}};
      if (has_state(options)) one.state[0] = {lists.state[0][i].to(at::kFloat)};
      run(one, options, is_first);
      lists.parameters[i].copy_(one.parameters[0]);
      if (has_state(options)) lists.state[0][i].copy_(one.state[0][0]);
    }
  }
};

/// at::_fused_adam_() and at::_fused_adamw_().
using FusedAdamStep = void(at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                           at::TensorList, at::TensorList, double, double, double, double, double,
                           bool, bool, const std::optional<at::Tensor>&,
                           const std::optional<at::Tensor>&);

/// Adam and AdamW, which differ in the weight decay.
template <class AdamOptions, class AdamState, FusedAdamStep* kFused>
struct AdamKernel {
  using Options = AdamOptions;
  using State = AdamState;
  static constexpr bool counts_steps = true;

  static bool has_state(const Options& /*options*/) { return true; }
  static std::vector<at::Tensor*> tensors(State& state, const Options& options) {
    std::vector<at::Tensor*> tensors{&state.exp_avg(), &state.exp_avg_sq()};
    if (options.amsgrad()) tensors.push_back(&state.max_exp_avg_sq());
    return tensors;
  }
  static void run(const KernelArguments& lists, const Options& options, bool /*is_first*/) {
    const auto [beta1, beta2] = options.betas();
    kFused(lists.parameters, lists.gradients, lists.state[0], lists.state[1], lists.state[2],
           lists.steps, options.lr(), beta1, beta2, options.weight_decay(), options.eps(),
           options.amsgrad(), false, {}, {});
  }
};

template <>
struct Kernel<torch::optim::Adam>
    : AdamKernel<torch::optim::AdamOptions, torch::optim::AdamParamState, at::_fused_adam_> {};
template <>
struct Kernel<torch::optim::AdamW>
    : AdamKernel<torch::optim::AdamWOptions, torch::optim::AdamWParamState, at::_fused_adamw_> {};

template <class Base>
const typename Kernel<Base>::Options& own(const OptimizerOptions& options) {
  return static_cast<const typename Kernel<Base>::Options&>(options);
}

template <class Base>
typename Kernel<Base>::State& own(OptimizerParamState& state) {
  return static_cast<typename Kernel<Base>::State&>(state);
}

template <class Base>
void run_kernel(const ElementwiseOptimizer::Elements& elements, std::vector<at::Tensor> steps,
                const typename Kernel<Base>::Options& options) {
  KernelArguments lists{.parameters = {elements.values},
                        .gradients = {elements.gradient},
                        .state = {},
                        .steps = std::move(steps)};
  for (std::size_t i = 0; i < elements.state.size(); ++i) lists.state[i] = {elements.state[i]};
  Kernel<Base>::run(lists, options, elements.is_first);
}

bool has_same_layout(const at::Tensor& parameter, const at::Tensor& other) {
  return other.layout() == at::kStrided && other.scalar_type() == parameter.scalar_type() &&
         other.device() == parameter.device() && other.strides() == parameter.strides() &&
         detail::has_values_in_memory(other);
}

std::size_t count_parameters(const torch::optim::Optimizer& optimizer) {
  std::size_t count = 0;
  for (const auto& group : optimizer.param_groups()) count += group.params().size();
  return count;
}

[[noreturn]] void fail_in_float32(LowPrecision mode, const at::Tensor& parameter, const char* got,
                                  const char* expected) {
  detail::throw_invalid("FusedOptimizer", "LowPrecision::", name(mode), ": got a parameter of ",
                        parameter.scalar_type(), ", of sizes ", parameter.sizes(), ", ", got,
                        ", expected ", expected);
}

}  // namespace

template <class Base>
std::size_t FusedOptimizer<Base>::check_listed_once() const {
  detail::check_listed_once(*this, "FusedOptimizer");
  return count_parameters(*this);
}

template <class Base>
void FusedOptimizer<Base>::check_parameters() const {
  const auto mode = low_precision();
  if (mode != LowPrecision::stochastic && mode != LowPrecision::kahan) return;
  for (const auto& group : this->param_groups()) {
    for (const auto& parameter : group.params()) {
      if (parameter.scalar_type() == at::kHalf)
        fail_in_float32(mode, parameter, "which has too few exponents for the optimizer's state",
                        "BFloat16: use LowPrecision::master for Half");
    }
  }
}

/// Whether the kernel supports all tensors. It reads and writes memory in order, so layouts must be
/// equal.
template <class Base>
bool FusedOptimizer<Base>::fits() const {
  std::optional<at::Device> device;
  for (const auto& group : this->param_groups()) {
    for (const auto& parameter : group.params()) {
      const auto& gradient = parameter.grad();
      if (!gradient.defined() || computes_in_float32(parameter)) continue;
      if (!device) device = parameter.device();
      if (parameter.device() != device || !parameter.is_non_overlapping_and_dense() ||
          !parameter.is_floating_point() || !has_same_layout(parameter, gradient)) {
        return false;
      }
      auto* const state = detail::find_state(this->state(), parameter);
      if (state == nullptr) continue;
      const auto tensors = Kernel<Base>::tensors(own<Base>(*state), own<Base>(group.options()));
      const auto fits = [&](const at::Tensor* tensor) {
        return !tensor->defined() || has_same_layout(parameter, *tensor);
      };
      if (!std::ranges::all_of(tensors, fits)) return false;
    }
  }
  return true;
}

template <class Base>
void FusedOptimizer<Base>::step_group(torch::optim::OptimizerParamGroup& group) {
  const auto& options = own<Base>(group.options());
  // One call per dtype, and separate calls for parameters whose state this step initialises.
  std::map<std::pair<bool, at::ScalarType>, KernelArguments> calls;
  // Kernels only read the numbers, so parameters share one.
  std::map<std::int64_t, std::vector<at::Tensor>> steps;
  for (auto& parameter : group.params()) {
    if (!parameter.grad().defined() || computes_in_float32(parameter)) continue;
    const auto tensors = tensors_of(parameter, options);
    const bool is_first = !tensors.empty() && !tensors.front()->defined();
    begin_update(parameter);
    auto& lists = calls[{is_first, parameter.scalar_type()}];
    lists.parameters.push_back(parameter);
    lists.gradients.push_back(parameter.grad());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i]->defined()) *tensors[i] = at::zeros_like(parameter);
      lists.state[i].push_back(*tensors[i]);
    }
    if constexpr (Kernel<Base>::counts_steps) {
      auto& step = steps[own<Base>(entry_of(parameter)).step()];
      if (step.empty()) step = step_of(parameter);
      lists.steps.push_back(step.front());
    }
  }
  for (const auto& [call, lists] : calls) {
    Kernel<Base>::run(lists, options, call.first);
    // LibTorch's operators on lists change no versions. The backward of a graph that has saved a
    // parameter raises an error.
    for (const auto& parameter : lists.parameters) parameter.unsafeGetTensorImpl()->bump_version();
  }
}

template <class Base>
auto FusedOptimizer<Base>::place_of(const at::Tensor& parameter) const -> std::optional<Place> {
  return detail::find_place(*this, parameter, places_);
}

template <class Base>
const OptimizerOptions& FusedOptimizer<Base>::options_of(const at::Tensor& parameter) const {
  return this->param_groups()[place_of(parameter).value().group].options();
}

template <class Base>
auto FusedOptimizer<Base>::origin_of(const at::Tensor& parameter) const -> Origin {
  const auto part = parts_.find(parameter.unsafeGetTensorImpl());
  if (part != parts_.end()) return part->second;
  const auto place = place_of(parameter).value();
  Origin origin{.parameter = place.index};
  for (std::size_t g = 0; g < place.group; ++g)
    origin.parameter += this->param_groups()[g].params().size();
  return origin;
}

template <class Base>
void FusedOptimizer<Base>::set_parts(const std::vector<Part>& parts) {
  parts_.clear();
  std::unordered_map<const void*, Origin> origins;
  for (const auto& part : parts) {
    auto& origin = origins[part.part.unsafeGetTensorImpl()] = origin_of(part.parameter);
    origin.begin = part.begin;
  }
  parts_ = std::move(origins);
}

template <class Base>
OptimizerParamState& FusedOptimizer<Base>::entry_of(const at::Tensor& parameter) {
  using ParamState = typename Kernel<Base>::State;
  auto& entry = this->state_[parameter.unsafeGetTensorImpl()];
  if (!entry) entry = std::make_unique<ParamState>();
  if (computes_in_float32(parameter) &&
      dynamic_cast<detail::LowPrecisionFields*>(entry.get()) == nullptr)
    entry = std::make_unique<detail::LowPrecisionState<ParamState>>(own<Base>(*entry));
  return *entry;
}

template <class Base>
bool FusedOptimizer<Base>::has(const at::Tensor& parameter) const {
  return place_of(parameter).has_value();
}

template <class Base>
std::vector<at::Tensor*> FusedOptimizer<Base>::tensors_of(const at::Tensor& parameter,
                                                          const OptimizerOptions& options) {
  if (!Kernel<Base>::has_state(own<Base>(options))) return {};
  return Kernel<Base>::tensors(own<Base>(entry_of(parameter)), own<Base>(options));
}

template <class Base>
std::vector<at::Tensor*> FusedOptimizer<Base>::state_of(const at::Tensor& parameter) {
  return tensors_of(parameter, options_of(parameter));
}

template <class Base>
void FusedOptimizer<Base>::begin_update(const at::Tensor& parameter) {
  if constexpr (Kernel<Base>::counts_steps) {
    auto& entry = own<Base>(entry_of(parameter));
    entry.step(entry.step() + 1);
  }
}

/// The number of the parameter's update, for the kernel; no tensor for one that needs none.
template <class Base>
std::vector<at::Tensor> FusedOptimizer<Base>::step_of(const at::Tensor& parameter) {
  if constexpr (Kernel<Base>::counts_steps) {
    const auto number = own<Base>(entry_of(parameter)).step();
    return {at::full({}, number, at::TensorOptions(parameter.device()).dtype(at::kFloat))};
  }
  return {};
}

template <class Base>
void FusedOptimizer<Base>::update(const at::Tensor& parameter, const Elements& elements) {
  run_kernel<Base>(elements, step_of(parameter), own<Base>(options_of(parameter)));
}

template <class Base>
void FusedOptimizer<Base>::step_in_float32(const at::Tensor& parameter) {
  const auto& gradient = parameter.grad();
  const auto mode = low_precision();
  if (!parameter.is_cpu()) fail_in_float32(mode, parameter, "on a device", "one on the CPU");
  if (!parameter.is_non_overlapping_and_dense())
    fail_in_float32(mode, parameter, "which is not dense in memory", "a dense one");
  if (gradient.layout() != at::kStrided)
    fail_in_float32(mode, parameter, "with a sparse gradient", "a dense gradient");
  const auto& options = own<Base>(options_of(parameter));
  auto& entry = entry_of(parameter);
  auto& fields = dynamic_cast<detail::LowPrecisionFields&>(entry);
  const auto tensors = tensors_of(parameter, options);
  begin_update(parameter);
  const auto steps = step_of(parameter);
  std::int64_t step = 0;
  if constexpr (Kernel<Base>::counts_steps)
    step = own<Base>(entry).step();
  else
    step = ++fields.updates;
  const auto origin = origin_of(parameter);
  const detail::LowPrecisionUpdate update{
      .mode = mode,
      .parameter = parameter,
      .gradient = gradient,
      .state = tensors,
      .state_dtype = state_dtype(parameter),
      .fields = &fields,
      .stream = {.step = static_cast<std::uint32_t>(step),
                 .parameter = static_cast<std::uint32_t>(origin.parameter)},
      .first = origin.begin};
  update.run([&](const Elements& elements) { run_kernel<Base>(elements, steps, options); });
}

/// The step of Base, for the parameters that are not updated in float32.
template <class Base>
void FusedOptimizer<Base>::step_of_base() {
  std::vector<std::pair<at::Tensor, at::Tensor>> hidden;
  const auto restore = c10::make_scope_exit([&] {
    for (auto& [parameter, gradient] : hidden) parameter.mutable_grad() = gradient;
  });
  for (auto& group : this->param_groups_) {
    for (auto& parameter : group.params()) {
      if (computes_in_float32(parameter)) {
        hidden.emplace_back(parameter, std::exchange(parameter.mutable_grad(), at::Tensor()));
        continue;
      }
      auto* const state = detail::find_state(this->state_, parameter);
      if (state == nullptr) continue;
      const auto tensors = Kernel<Base>::tensors(own<Base>(*state), own<Base>(group.options()));
      // Base would use the undefined tensors of entries that state_of() has created.
      if (!tensors.front()->defined()) detail::take_state(this->state_, parameter);
    }
  }
  Base::step();
}

template <class Base>
at::Tensor FusedOptimizer<Base>::step(torch::optim::Optimizer::LossClosure closure) {
  // A sharded step passes the parts of one bucket, which are fewer.
  if (count_parameters(*this) > checked_) checked_ = check_listed_once();
  const at::NoGradGuard no_grad;
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode enable_grad(true);
    loss = closure();
  }
  for (auto& group : this->param_groups_) {
    for (auto& parameter : group.params()) {
      if (parameter.grad().defined() && computes_in_float32(parameter)) step_in_float32(parameter);
    }
  }
  if (fits()) {
    for (auto& group : this->param_groups_) step_group(group);
  } else {
    step_of_base();
  }
  return loss;
}

template class FusedOptimizer<torch::optim::SGD>;
template class FusedOptimizer<torch::optim::Adam>;
template class FusedOptimizer<torch::optim::AdamW>;

}  // namespace lockstep
