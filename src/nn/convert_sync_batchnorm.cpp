#include <ATen/ops/batch_norm.h>
#include <ATen/ops/batch_norm_native.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/text.h"
#include "lockstep/error.h"
#include "lockstep/sync_batch_norm.h"
#include "nn/recomputed_segment.h"
#include "nn/sync_batch_norm_function.h"
#include "parallel/agree.h"

// Note [How a batch norm is converted]
//
// BatchNorm2dImpl::forward() is not virtual, and a user's module calls it through a typed member. A
// replacement for the member must be a BatchNorm2dImpl, and would run that same forward(). But
// every forward() calls the operator aten::batch_norm with the layer's own tensors. So the layer is
// kept, and one of its tensors refers to the SyncLayer. This file registers a kernel of the
// operator for tensors of the CPU and of accelerators, which looks for the reference. It passes all
// other calls to LibTorch's function.
//
// The reference is an autograd hook of the tensor. It survives writes into the tensor, also by to()
// and load(), which would drop a c10::BackendMeta. It is destroyed with the tensor. Running
// statistics have no gradient, so autograd never calls their hook. Without running statistics the
// weight has the hook, which returns its gradients unchanged.
//
// aten::batch_norm is a composite operator: it has no kernel for CPU or AutogradCPU that this one
// would replace, nor for the keys of an accelerator. If another library registers a kernel later,
// that one is called instead. So convert_sync_batchnorm() first checks that this kernel is called.

namespace lockstep::inline v0_2 {
namespace {

using detail::concat;
using detail::NormTensors;
using detail::SyncLayer;

/// A hook that leaves the gradients unchanged.
struct TensorHook : torch::autograd::FunctionPreHook {
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    return gradients;
  }
};

/// The hook on a tensor of a converted torch::nn::BatchNorm. Refers to the SyncLayer.
struct SyncLayerHook : TensorHook {
  SyncLayerHook(c10::intrusive_ptr<SyncLayer> sync_layer,
                std::weak_ptr<const torch::nn::Module> batch_norm, bool on_added_weight)
      : layer(std::move(sync_layer)),
        module(std::move(batch_norm)),
        weight_is_added(on_added_weight) {}

  /// Whether the layer is in evaluation mode. Without running statistics, LibTorch then also passes
  /// training = true, but the statistics must be those of this rank's batch.
  bool evaluates() const {
    const auto batch_norm = module.lock();
    return batch_norm != nullptr && !batch_norm->is_training();
  }

  c10::intrusive_ptr<SyncLayer> layer;
  std::weak_ptr<const torch::nn::Module> module;
  bool weight_is_added;  ///< the weight exists only for this hook and is not applied
};

/// The hook of expect_kernel_is_called() on a tensor.
struct Probe : TensorHook {
  bool found = false;
};

/// The tensor's hook of a class; null if there is none.
template <class Hook>
Hook* hook_of(const at::Tensor& tensor) {
  if (!tensor.defined() || torch::autograd::impl::get_autograd_meta(tensor) == nullptr) {
    return nullptr;
  }
  for (const auto& hook : torch::autograd::impl::hooks(tensor)) {
    if (auto* found = dynamic_cast<Hook*>(hook.get())) return found;
  }
  return nullptr;
}

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor batch_norm_kernel(const at::Tensor& input, const OptionalTensor& weight,
                             const OptionalTensor& bias, const OptionalTensor& running_mean,
                             const OptionalTensor& running_var, bool training, double momentum,
                             double eps, bool cudnn_enabled) {
  NormTensors tensors{.weight = weight.value_or(at::Tensor()),
                      .bias = bias.value_or(at::Tensor()),
                      .running_mean = running_mean.value_or(at::Tensor()),
                      .running_var = running_var.value_or(at::Tensor())};
  for (const auto* tensor : {&tensors.running_mean, &tensors.weight}) {
    if (auto* probe = hook_of<Probe>(*tensor)) {
      probe->found = true;
      return input;
    }
    if (const auto* hook = hook_of<SyncLayerHook>(*tensor)) {
      if (hook->weight_is_added) tensors.weight = at::Tensor();
      if (!training || hook->evaluates()) break;
      return detail::sync_batch_norm(input, tensors, momentum, eps, hook->layer);
    }
  }
  if (training && detail::is_recomputing()) {
    // The first forward has updated the running statistics.
    for (auto* running : {&tensors.running_mean, &tensors.running_var})
      if (running->defined()) *running = running->clone();
  }
  return at::native::batch_norm(input, tensors.weight, bias, tensors.running_mean,
                                tensors.running_var, training, momentum, eps, cudnn_enabled);
}

TORCH_LIBRARY_FRAGMENT(aten, library) {
  using enum c10::DispatchKey;
  // The last three are called where autograd is disabled, as in inference mode.
  for (const auto key : {AutogradCPU, AutogradCUDA, AutogradPrivateUse1, CPU, CUDA, PrivateUse1})
    library.impl("batch_norm", key, TORCH_FN(batch_norm_kernel));
}

void expect_kernel_is_called(at::Device device) {
  const auto weight = at::ones({1}, device);
  torch::autograd::impl::add_hook(weight, std::make_unique<Probe>());
  at::batch_norm(at::ones({2, 1}, device), weight, {}, {}, {}, true, 0, 1, false);
  if (!hook_of<Probe>(weight)->found) {
    throw BackendUnavailable(
        "convert_sync_batchnorm: another library has registered a kernel of aten::batch_norm; use "
        "lockstep::SyncBatchNorm layers in the model instead");
  }
}

template <class Norm>
void convert(Norm& norm, const Group& group, const std::string& name, std::int64_t number) {
  const bool add_weight = !norm.options.affine() && !norm.options.track_running_stats();
  if (add_weight) norm.weight = at::ones({norm.options.num_features()}, group.device());
  const auto& hooked = norm.running_mean.defined() ? norm.running_mean : norm.weight;
  torch::autograd::impl::materialize_autograd_meta(hooked);
  std::erase_if(torch::autograd::impl::hooks(hooked), [](const auto& hook) {
    return dynamic_cast<const SyncLayerHook*>(hook.get()) != nullptr;
  });
  auto layer = c10::make_intrusive<SyncLayer>(group, name, number);
  torch::autograd::impl::add_hook(
      hooked, std::make_unique<SyncLayerHook>(std::move(layer), norm.weak_from_this(), add_weight));
}

void convert(SyncBatchNormImpl& norm, const Group& group, const std::string& name,
             std::int64_t number) {
  norm.regroup(c10::make_intrusive<SyncLayer>(group, name, number));
}

/// Calls fn with the batch norm that a module is. Returns whether it is one.
template <class Function>
bool with_norm(torch::nn::Module& module, const Function& fn) {
  const auto call = [&](auto* norm) {
    if (norm != nullptr) fn(*norm);
    return norm != nullptr;
  };
  return call(dynamic_cast<torch::nn::BatchNorm1dImpl*>(&module)) ||
         call(dynamic_cast<torch::nn::BatchNorm2dImpl*>(&module)) ||
         call(dynamic_cast<torch::nn::BatchNorm3dImpl*>(&module)) ||
         call(dynamic_cast<SyncBatchNormImpl*>(&module));
}

/// A layer to convert.
struct ConvertibleLayer {
  std::string name;  ///< within the model
  torch::nn::Module* module;
};

std::vector<ConvertibleLayer> find_layers(torch::nn::Module& model) {
  std::vector<ConvertibleLayer> layers;
  model.apply([&](const std::string& name, torch::nn::Module& module) {
    const bool is_new =
        std::ranges::find(layers, &module, &ConvertibleLayer::module) == layers.end();
    if (is_new && with_norm(module, [](const auto&) {}))
      layers.push_back({.name = name, .module = &module});
  });
  return layers;
}

}  // namespace

std::size_t convert_sync_batchnorm(torch::nn::Module& model, const Group& group) {
  expect_kernel_is_called(group.device());
  const auto layers = find_layers(model);
  std::vector<std::string> lines;
  for (const auto& [name, module] : layers) lines.push_back(concat("layer ", name, " ", *module));
  detail::agree(group, "convert_sync_batchnorm", lines);
  if (layers.empty()) return 0;
  const auto own = group.split(0);
  for (std::int64_t number = 1; const auto& layer : layers) {
    with_norm(*layer.module, [&](auto& norm) { convert(norm, own, layer.name, number); });
    ++number;
  }
  return layers.size();
}

}  // namespace lockstep
