#include <ATen/core/Dict.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/jit_type.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/text.h"
#include "lockstep/error.h"
#include "lockstep/model_files.h"
#include "parallel/model_tensors.h"

namespace lockstep::inline v0_2 {

using detail::concat;
using detail::tensors_of;

c10::IValue state_dict(const ModelView& model) {
  c10::impl::GenericDict dict(c10::AnyType::get(), c10::AnyType::get());
  for (const auto& [name, tensor] : tensors_of(model)) dict.insert(name, tensor.detach());
  return dict;
}

namespace {

/// The tensors of the dict by their names in the model.
std::map<std::string, c10::IValue> by_model_names(const c10::IValue& dict,
                                                  const LoadOptions& options) {
  if (!dict.isGenericDict())
    throw CheckpointError(concat("model: expected a state dict, found ", dict.tagKind()));
  std::map<std::string, c10::IValue> stored;
  const auto entries = dict.toGenericDict();
  for (const auto& item : entries) {
    const bool has_name = item.key().isString();
    const std::string in_dict = has_name ? item.key().toStringRef() : "(key is not a string)";
    const std::string name = has_name && options.rename ? options.rename(in_dict) : in_dict;
    if (name.empty()) continue;
    if (!stored.emplace(name, item.value()).second)
      throw CheckpointError(concat("tensor '", in_dict, "': is renamed to '", name,
                                   "', the name of another tensor of the state dict"));
  }
  return stored;
}

void check_fits(const std::string& name, const at::Tensor& tensor, const c10::IValue& stored,
                bool convert_dtypes) {
  if (!stored.isTensor())
    throw CheckpointError(
        concat("tensor '", name, "': expected a tensor, found ", stored.tagKind()));
  const at::Tensor value = stored.toTensor();
  const bool converts = convert_dtypes && value.is_complex() == tensor.is_complex();
  const bool same_dtype = value.scalar_type() == tensor.scalar_type();
  if (value.sizes() != tensor.sizes() || (!same_dtype && !converts)) {
    const bool may_convert = value.sizes() == tensor.sizes() && !convert_dtypes;
    throw CheckpointError(
        concat("tensor '", name, "': expected ", tensor.scalar_type(), ' ', tensor.sizes(),
               ", found ", value.scalar_type(), ' ', value.sizes(),
               may_convert ? ": set LoadOptions::convert_dtypes to convert" : ""));
  }
}

}  // namespace

NotLoaded load_state_dict(const ModelView& model, const c10::IValue& dict,
                          const LoadOptions& options) {
  const auto stored = by_model_names(dict, options);
  NotLoaded left;
  std::set<std::string> in_model;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  for (const auto& [name, tensor] : tensors_of(model)) {
    in_model.insert(name);
    const auto found = stored.find(name);
    if (found == stored.end()) {
      if (options.strict)
        throw CheckpointError(
            concat("tensor '", name, "': is in the model, but not in the state dict"));
      left.missing.push_back(name);
      continue;
    }
    check_fits(name, tensor, found->second, options.convert_dtypes);
    copies.emplace_back(tensor, found->second.toTensor());
  }
  for (const auto& [name, value] : stored) {
    if (in_model.contains(name)) continue;
    if (options.strict)
      throw CheckpointError(
          concat("tensor '", name, "': is in the state dict, but not in the model"));
    left.unexpected.push_back(name);
  }
  const at::NoGradGuard no_grad;
  for (const auto& [to, from] : copies) to.copy_(from);
  return left;
}

NotLoaded load_state_dict(const ModelView& model, const std::map<std::string, at::Tensor>& tensors,
                          const LoadOptions& options) {
  c10::impl::GenericDict dict(c10::AnyType::get(), c10::AnyType::get());
  for (const auto& [name, tensor] : tensors) dict.insert(name, tensor);
  return load_state_dict(model, c10::IValue(dict), options);
}

}  // namespace lockstep
