#include <ATen/core/Dict.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/jit_type.h>

#include <string>
#include <utility>
#include <vector>

#include "core/text.h"
#include "lockstep/error.h"
#include "lockstep/model_files.h"

namespace lockstep::inline v0_2 {

namespace {

using detail::concat;

std::vector<NamedTensor> tensors_of(const ModelView& model) {
  auto tensors = model.parameters();
  for (auto& buffer : model.buffers()) tensors.push_back(std::move(buffer));
  return tensors;
}

}  // namespace

c10::IValue state_dict(const ModelView& model) {
  c10::impl::GenericDict dict(c10::AnyType::get(), c10::AnyType::get());
  for (const auto& [name, tensor] : tensors_of(model)) dict.insert(name, tensor.detach());
  return dict;
}

void load_state_dict(const ModelView& model, const c10::IValue& dict) {
  if (!dict.isGenericDict())
    throw CheckpointError(concat("model: expected a state dict, found ", dict.tagKind()));
  const auto stored = dict.toGenericDict();
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  for (const auto& [name, tensor] : tensors_of(model)) {
    const auto found = stored.find(name);
    if (found == stored.end())
      throw CheckpointError(
          concat("tensor '", name, "': is in the model, but not in the state dict"));
    if (!found->value().isTensor())
      throw CheckpointError(
          concat("tensor '", name, "': expected a tensor, found ", found->value().tagKind()));
    const at::Tensor value = found->value().toTensor();
    if (value.sizes() != tensor.sizes() || value.scalar_type() != tensor.scalar_type())
      throw CheckpointError(concat("tensor '", name, "': expected ", tensor.scalar_type(), ' ',
                                   tensor.sizes(), ", found ", value.scalar_type(), ' ',
                                   value.sizes()));
    copies.emplace_back(tensor, value);
  }
  for (const auto& item : stored) {
    const std::string name =
        item.key().isString() ? item.key().toStringRef() : "(key is not a string)";
    bool in_model = false;
    for (const auto& [own, tensor] : tensors_of(model)) in_model = in_model || own == name;
    if (!in_model)
      throw CheckpointError(
          concat("tensor '", name, "': is in the state dict, but not in the model"));
  }
  const at::NoGradGuard no_grad;
  for (const auto& [to, from] : copies) to.copy_(from);
}

}  // namespace lockstep
