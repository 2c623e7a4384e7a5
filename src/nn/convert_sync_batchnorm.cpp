#include <ATen/ops/batch_norm.h>
#include <ATen/ops/batch_norm_native.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/text.h"
#include "lockstep/error.h"
#include "lockstep/sync_batch_norm.h"
#include "nn/sync_batch_norm_function.h"
#include "parallel/agree.h"

// Note [How a batch norm is converted]
//
// BatchNorm2dImpl::forward() is not virtual, and a user's module calls it through a typed member. A
// replacement for the member must be a BatchNorm2dImpl, and would run that same forward(). In the
// end forward() calls the operator aten::batch_norm with its own tensors. So the layer stays, and
// one of its tensors refers to the SyncLayer. The operator has a kernel for CPU tensors that looks
// for the reference; for all other tensors it is LibTorch's own.
//
// The reference is a hook among autograd's. It stays with the tensor whatever is written into the
// tensor, by to() and load() too, and ends with it. Both calls would lose a c10::BackendMeta.
// Running statistics have no gradient, so autograd never calls their hook. Without running
// statistics the weight carries the hook, which returns its gradients unchanged.
//
// aten::batch_norm is composed of other operators and has no kernel of its own for CPU or
// AutogradCPU that this one would replace. Other libraries put theirs in the same place, and the
// last one is called: whether that is this one is tried out before a model is converted.

namespace lockstep::inline v0_2 {
namespace {

using detail::concat;
using detail::NormTensors;
using detail::SyncLayer;

/// The hook on a tensor of a converted torch::nn::BatchNorm.
struct Converted : torch::autograd::FunctionPreHook {
  Converted(c10::intrusive_ptr<SyncLayer> as, std::weak_ptr<const torch::nn::Module> held_by,
            bool weight_is_carrier)
      : layer(std::move(as)), module(std::move(held_by)), has_no_weight(weight_is_carrier) {}

  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    return gradients;
  }

  /// Without running statistics an evaluation too uses its batch's, but its own rank's only.
  bool evaluates() const {
    const auto held = module.lock();
    return held != nullptr && !held->is_training();
  }

  c10::intrusive_ptr<SyncLayer> layer;
  std::weak_ptr<const torch::nn::Module> module;
  bool has_no_weight;  ///< its weight is there to carry this
};

/// The hook on the tensor that the kernel is tried out with.
struct Probe : torch::autograd::FunctionPreHook {
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    return gradients;
  }
  bool found = false;
};

/// The tensor's hook of that class; null if there is none.
template <class Carried>
Carried* carried_by(const at::Tensor& tensor) {
  if (!tensor.defined() || torch::autograd::impl::get_autograd_meta(tensor) == nullptr) {
    return nullptr;
  }
  for (const auto& hook : torch::autograd::impl::hooks(tensor)) {
    if (auto* carried = dynamic_cast<Carried*>(hook.get())) return carried;
  }
  return nullptr;
}

using Maybe = std::optional<at::Tensor>;

at::Tensor batch_norm_kernel(const at::Tensor& input, const Maybe& weight, const Maybe& bias,
                             const Maybe& running_mean, const Maybe& running_var, bool training,
                             double momentum, double eps, bool cudnn_enabled) {
  NormTensors tensors{.weight = weight.value_or(at::Tensor()),
                      .bias = bias.value_or(at::Tensor()),
                      .running_mean = running_mean.value_or(at::Tensor()),
                      .running_var = running_var.value_or(at::Tensor())};
  for (const auto* tensor : {&tensors.running_mean, &tensors.weight}) {
    if (auto* probe = carried_by<Probe>(*tensor)) {
      probe->found = true;
      return input;
    }
    if (const auto* converted = carried_by<Converted>(*tensor)) {
      if (converted->has_no_weight) tensors.weight = at::Tensor();
      if (!training || converted->evaluates()) break;
      return detail::sync_batch_norm(input, tensors, momentum, eps, converted->layer);
    }
  }
  return at::native::batch_norm(input, tensors.weight, bias, running_mean, running_var, training,
                                momentum, eps, cudnn_enabled);
}

TORCH_LIBRARY_IMPL(aten, AutogradCPU, library) {
  library.impl("batch_norm", TORCH_FN(batch_norm_kernel));
}
// Reached where autograd is off altogether, as in inference mode.
TORCH_LIBRARY_IMPL(aten, CPU, library) { library.impl("batch_norm", TORCH_FN(batch_norm_kernel)); }

void expect_kernel_is_called() {
  const auto weight = at::ones({1});
  torch::autograd::impl::add_hook(weight, std::make_unique<Probe>());
  at::batch_norm(at::ones({2, 1}), weight, {}, {}, {}, true, 0, 1, false);
  if (!carried_by<Probe>(weight)->found) {
    throw BackendUnavailable(
        "convert_sync_batchnorm: another library has taken aten::batch_norm over; use "
        "lockstep::SyncBatchNorm layers in the model itself");
  }
}

/// A layer to convert.
struct Found {
  std::string name;  ///< within the model
  std::string line;  ///< as ranks must agree on
  const torch::nn::Module* module;
  std::function<void(const Group&, std::int64_t)> convert;
};

template <class Norm>
void convert(Norm& norm, const Group& group, const std::string& name, std::int64_t number) {
  const bool bare = !norm.options.affine() && !norm.options.track_running_stats();
  if (bare) norm.weight = at::ones({norm.options.num_features()});
  const auto& carrier = norm.running_mean.defined() ? norm.running_mean : norm.weight;
  torch::autograd::impl::materialize_autograd_meta(carrier);
  std::erase_if(torch::autograd::impl::hooks(carrier), [](const auto& hook) {
    return dynamic_cast<const Converted*>(hook.get()) != nullptr;
  });
  auto layer = c10::make_intrusive<SyncLayer>(group, name, number);
  torch::autograd::impl::add_hook(
      carrier, std::make_unique<Converted>(std::move(layer), norm.weak_from_this(), bare));
}

void convert(SyncBatchNormImpl& norm, const Group& group, const std::string& name,
             std::int64_t number) {
  norm.regroup(c10::make_intrusive<SyncLayer>(group, name, number));
}

template <class Norm>
std::optional<Found> as(const std::string& name, torch::nn::Module& module) {
  auto* norm = dynamic_cast<Norm*>(&module);
  if (norm == nullptr) return std::nullopt;
  return Found{.name = name,
               .line = concat("layer ", name, " ", module),
               .module = norm,
               .convert = [norm, name](const Group& group, std::int64_t number) {
                 convert(*norm, group, name, number);
               }};
}

std::vector<Found> find_layers(torch::nn::Module& model) {
  std::vector<Found> layers;
  model.apply([&](const std::string& name, torch::nn::Module& module) {
    auto layer = as<torch::nn::BatchNorm1dImpl>(name, module);
    if (!layer) layer = as<torch::nn::BatchNorm2dImpl>(name, module);
    if (!layer) layer = as<torch::nn::BatchNorm3dImpl>(name, module);
    if (!layer) layer = as<SyncBatchNormImpl>(name, module);
    if (!layer) return;
    const auto known = [&](const Found& other) { return other.module == layer->module; };
    if (std::none_of(layers.begin(), layers.end(), known)) layers.push_back(std::move(*layer));
  });
  return layers;
}

}  // namespace

std::size_t convert_sync_batchnorm(torch::nn::Module& model, const Group& group) {
  expect_kernel_is_called();
  const auto layers = find_layers(model);
  std::vector<std::string> lines;
  for (const auto& layer : layers) lines.push_back(layer.line);
  detail::agree(group, "convert_sync_batchnorm", lines);
  if (layers.empty()) return 0;
  const auto own = group.split(0);
  for (std::int64_t number = 1; const auto& layer : layers) layer.convert(own, number++);
  return layers.size();
}

}  // namespace lockstep
