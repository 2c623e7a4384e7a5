#include "lockstep/model_view.h"

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/operation_error.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "parallel/reducer/buffer_sync.h"
#include "parallel/reducer/model_state.h"

namespace lockstep::inline v0_2 {
namespace {

using detail::ModelTensors;
using Visit = c10::function_ref<void(const at::Tensor&)>;
using Sparse = std::unordered_set<const void*>;

/// Access to a module's own parameters. Module::parameters() also builds their names.
struct OwnParameters : torch::nn::Module {
  static const auto& of(const torch::nn::Module& module) {
    return module.*(&OwnParameters::parameters_);
  }
};

void for_each_parameter_of(const torch::nn::Module& module, Visit fn) {
  for (const auto& parameter : OwnParameters::of(module)) {
    if (parameter.value().defined()) fn(parameter.value());
  }
  for (const auto& child : module.children()) for_each_parameter_of(*child, fn);
}

void add_sparse_layers(const torch::nn::Module& module, Sparse& parameters) {
  const auto add = [&](const auto* layer) {
    if (layer != nullptr && layer->options.sparse()) {
      parameters.insert(layer->weight.unsafeGetTensorImpl());
    }
  };
  add(dynamic_cast<const torch::nn::EmbeddingImpl*>(&module));
  add(dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&module));
  for (const auto& child : module.children()) add_sparse_layers(*child, parameters);
}

std::vector<NamedTensor> list(const torch::OrderedDict<std::string, at::Tensor>& named) {
  std::vector<NamedTensor> tensors;
  for (const auto& entry : named) tensors.push_back({.name = entry.key(), .tensor = entry.value()});
  return tensors;
}

class OfModule final : public ModelTensors {
 public:
  explicit OfModule(std::shared_ptr<const torch::nn::Module> module) : module_(std::move(module)) {}

  std::vector<NamedTensor> parameters() const override { return list(module_->named_parameters()); }
  std::vector<NamedTensor> buffers() const override { return list(module_->named_buffers()); }
  void for_each_parameter(Visit fn) const override { for_each_parameter_of(*module_, fn); }
  void add_sparse(Sparse& parameters) const override { add_sparse_layers(*module_, parameters); }

 private:
  std::shared_ptr<const torch::nn::Module> module_;
};

/// Whether the class is torch.nn.Embedding or EmbeddingBag with sparse = True, which is a constant.
bool is_sparse_layer(const c10::ClassType& type) {
  const auto name = type.name();
  if (!name || !std::string_view(name->name()).starts_with("Embedding")) return false;
  const auto sparse = type.findConstant("sparse");
  return sparse && sparse->isBool() && sparse->toBool();
}

class OfScript final : public ModelTensors {
 public:
  explicit OfScript(const torch::jit::Module& module) : object_(module._ivalue()) {}

  std::vector<NamedTensor> parameters() const override {
    return named(&c10::ClassType::is_parameter);
  }
  std::vector<NamedTensor> buffers() const override { return named(&c10::ClassType::is_buffer); }
  void for_each_parameter(Visit fn) const override { for_each(&c10::ClassType::is_parameter, fn); }
  void for_each_assigned_buffer(Visit fn) const override {
    for_each(&c10::ClassType::is_buffer, fn);
  }
  void add_sparse(Sparse& parameters) const override {
    walk(*object_, nullptr, [&](const auto& type, std::size_t slot, const auto& tensor, auto&&) {
      if (type.is_parameter(slot) && is_sparse_layer(type)) {
        parameters.insert(tensor.unsafeGetTensorImpl());
      }
    });
  }

 private:
  using Selects = bool (c10::ClassType::*)(std::size_t slot) const;

  /// Calls fn with each tensor among the attributes of the object and its submodules. Names begin
  /// with *prefix; they are empty for a null prefix.
  template <class Fn>
  static void walk(const c10::ivalue::Object& object, const std::string* prefix, const Fn& fn) {
    const auto& type = *object.type();
    for (std::size_t slot = 0; slot < type.numAttributes(); ++slot) {
      const auto& value = object.getSlot(slot);
      if (!value.isTensor() && !value.isModule()) continue;
      auto name = prefix != nullptr ? *prefix + type.getAttributeName(slot) : std::string();
      if (value.isTensor()) {
        if (value.toTensor().defined()) fn(type, slot, value.toTensor(), std::move(name));
        continue;
      }
      if (prefix != nullptr) name += '.';
      walk(value.toObjectRef(), prefix != nullptr ? &name : nullptr, fn);
    }
  }

  void for_each(Selects selects, Visit fn) const {
    walk(*object_, nullptr, [&](const auto& type, std::size_t slot, const auto& tensor, auto&&) {
      if ((type.*selects)(slot)) fn(tensor);
    });
  }

  std::vector<NamedTensor> named(Selects selects) const {
    std::vector<NamedTensor> tensors;
    const std::string prefix;
    walk(*object_, &prefix, [&](const auto& type, std::size_t slot, const auto& tensor, auto name) {
      if ((type.*selects)(slot)) tensors.push_back({.name = std::move(name), .tensor = tensor});
    });
    return tensors;
  }

  torch::jit::ObjectPtr object_;
};

class OfList final : public ModelTensors {
 public:
  OfList(std::vector<NamedTensor> parameters, std::vector<NamedTensor> buffers)
      : parameters_(std::move(parameters)), buffers_(std::move(buffers)) {}

  std::vector<NamedTensor> parameters() const override { return parameters_; }
  std::vector<NamedTensor> buffers() const override { return buffers_; }
  void for_each_parameter(Visit fn) const override {
    for (const auto& named : parameters_) fn(named.tensor);
  }

 private:
  std::vector<NamedTensor> parameters_;
  std::vector<NamedTensor> buffers_;
};

[[noreturn]] void refuse(const std::string& name, const char* got, const char* expected) {
  throw InvalidArgument(
      detail::concat("ModelView '", name, "': got ", got, ", expected ", expected),
      {.operation = "ModelView"});
}

void check(const std::vector<NamedTensor>& parameters, const std::vector<NamedTensor>& buffers) {
  std::unordered_set<std::string_view> names;
  for (const auto* tensors : {&parameters, &buffers}) {
    for (const auto& [name, tensor] : *tensors) {
      if (name.empty()) refuse(name, "a tensor without a name", "a name for each tensor");
      if (!tensor.defined()) refuse(name, "an undefined tensor", "a tensor: remove the name");
      if (!names.insert(name).second)
        refuse(name, "the name twice", "another name for each tensor");
    }
  }
}

}  // namespace

ModelView::ModelView(const torch::nn::Module& model)
    : ModelView(std::shared_ptr<const torch::nn::Module>(std::shared_ptr<void>(), &model)) {}

ModelView::ModelView(std::shared_ptr<const torch::nn::Module> model) {
  if (model != nullptr) tensors_ = std::make_shared<OfModule>(std::move(model));
}

ModelView::ModelView(const torch::jit::Module& model)
    : tensors_(std::make_shared<OfScript>(model)) {}

ModelView::ModelView(std::vector<NamedTensor> parameters, std::vector<NamedTensor> buffers) {
  check(parameters, buffers);
  tensors_ = std::make_shared<OfList>(std::move(parameters), std::move(buffers));
}

const detail::ModelTensors& ModelView::tensors() const {
  if (!tensors_) detail::throw_invalid("ModelView", "got no model, expected one");
  return *tensors_;
}

std::vector<NamedTensor> ModelView::parameters() const { return tensors().parameters(); }

std::vector<NamedTensor> ModelView::buffers() const {
  auto buffers = tensors().buffers();
  detail::BufferSync::write(buffers);
  return buffers;
}

std::vector<at::Tensor> parameters(const ModelView& model) {
  std::vector<at::Tensor> once;
  std::unordered_set<const void*> listed;
  model.tensors().for_each_parameter([&](const at::Tensor& parameter) {
    if (listed.insert(parameter.unsafeGetTensorImpl()).second) once.push_back(parameter);
  });
  return once;
}

std::vector<NamedTensor> detail::tensors_of(const ModelView& model) {
  auto tensors = model.parameters();
  for (auto& buffer : model.buffers()) tensors.push_back(std::move(buffer));
  return tensors;
}

}  // namespace lockstep
