#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
template <typename Contained>
class ModuleHolder;
}  // namespace torch::nn
namespace torch::jit {
struct Module;
}

namespace lockstep::inline v0_2 {

class Group;

/// A parameter or a buffer of a model.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

namespace detail {
class ModelTensors;
/// Whether the optimizer of a DistributedOptimizer updates a parameter.
using IsOptimized = std::function<bool(const at::Tensor& parameter)>;
}  // namespace detail

/// The parameters and buffers of a model of any kind. Functions that take a ModelView train, save,
/// load or broadcast each of these:
/// - a torch::nn::Module, or its holder, which TORCH_MODULE declares
/// - a torch::jit::Module, which Python exports with torch.jit.script() and torch.jit.save()
/// - a list of named tensors, for a program with a forward of its own
///
///     auto model = torch::jit::load("resnet.pt");
///     lockstep::DistributedDataParallel ddp(model, world);
///
/// Copies refer to the same model.
class ModelView {
 public:
  /// The module must outlive the view.
  ModelView(const torch::nn::Module& model);  // NOLINT(google-explicit-constructor): any model
  /// Shares the ownership. A null pointer gives a view of no model, which functions refuse.
  ModelView(std::shared_ptr<const torch::nn::Module> model);  // NOLINT(google-explicit-constructor)
  /// Shares the ownership of the module.
  template <class M>
  ModelView(const torch::nn::ModuleHolder<M>& model)  // NOLINT(google-explicit-constructor)
      : ModelView(std::shared_ptr<const torch::nn::Module>(model.ptr())) {}
  /// The handle is copied: it refers to the same parameters.
  ModelView(const torch::jit::Module& model);  // NOLINT(google-explicit-constructor)
  /// Names are those in checkpoints and error messages.
  /// Throws: InvalidArgument for an undefined tensor, and for an empty name or one that occurs
  /// twice.
  explicit ModelView(std::vector<NamedTensor> parameters, std::vector<NamedTensor> buffers = {});

  /// In order of registration. A tensor with several names occurs under each.
  std::vector<NamedTensor> parameters() const;
  /// Values that a DistributedDataParallel has received for them are written.
  std::vector<NamedTensor> buffers() const;

  /// False for a null pointer to a module.
  explicit operator bool() const { return tensors_ != nullptr; }

  /// The implementation. It is not part of the public API.
  const detail::ModelTensors& tensors() const;

 private:
  std::shared_ptr<const detail::ModelTensors> tensors_;
};

/// The model's parameters for an optimizer: each once, in order of registration, as Python's
/// parameters(). LibTorch's parameters() lists a parameter with two names twice, and an optimizer
/// would update it twice.
///
///     torch::optim::SGD sgd(lockstep::parameters(*model), 0.1);
///
/// Throws: InvalidArgument for a null pointer to a module.
std::vector<at::Tensor> parameters(const ModelView& model);

/// Every rank's parameters and buffers of the model = root's values. Autograd does not record the
/// change.
/// Ranks: all.
/// Throws: InvalidArgument, on every rank, if names, shapes, strides or dtypes differ between
/// ranks, naming the first difference and the ranks; the group stays usable.
void broadcast_parameters(const ModelView& model, const Group& group, int root = 0);

}  // namespace lockstep
