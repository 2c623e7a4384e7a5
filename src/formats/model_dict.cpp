#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/text.h"
#include "formats/safetensors.h"
#include "formats/state_dict.h"
#include "lockstep/error.h"
#include "lockstep/model_files.h"
#include "parallel/reducer/model_state.h"

namespace lockstep::inline v0_2 {

using detail::concat;
using detail::tensors_of;

c10::IValue state_dict(const ModelView& model) {
  auto dict = detail::empty_dict();
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
  const auto fail = [&](const auto&... parts) {
    throw CheckpointError(concat("tensor '", name, "': ", parts...));
  };
  if (!stored.isTensor()) fail("expected a tensor, found ", stored.tagKind());
  const at::Tensor value = stored.toTensor();
  if (!value.defined()) fail("expected a tensor, found an undefined one");
  if (value.layout() != tensor.layout())
    fail("expected layout ", tensor.layout(), ", found ", value.layout());
  if (value.is_meta() || tensor.is_meta())
    fail("expected values, found a tensor of device meta, which has none");
  const bool converts = convert_dtypes && value.is_complex() == tensor.is_complex() &&
                        !value.is_quantized() && !tensor.is_quantized();
  const bool same_dtype = value.scalar_type() == tensor.scalar_type();
  if (value.sizes() != tensor.sizes() || (!same_dtype && !converts)) {
    const bool may_convert = value.sizes() == tensor.sizes() && !convert_dtypes;
    fail("expected ", tensor.scalar_type(), ' ', tensor.sizes(), ", found ", value.scalar_type(),
         ' ', value.sizes(),
         may_convert ? ": convert it, or call load_state_dict() with LoadOptions::convert_dtypes"
                     : "");
  }
}

/// Whether both have the same bits as values of a tensor of the model.
bool same_values(const at::Tensor& a, const at::Tensor& b, const at::Tensor& of_model) {
  if (a.is_same(b)) return true;
  if (of_model.layout() != at::kStrided) return false;
  const auto dense = [&](const at::Tensor& values) {
    return values.detach().to(at::kCPU, of_model.scalar_type()).contiguous();
  };
  const auto first = dense(a), second = dense(b);
  return std::ranges::equal(safetensors::bytes_of(first), safetensors::bytes_of(second));
}

/// Whether two elements of the tensor may have the same place in memory.
bool overlaps_itself(const at::Tensor& tensor) {
  std::vector<std::pair<std::int64_t, std::int64_t>> dimensions;  // stride, size
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) == 0) return false;
    if (tensor.size(d) > 1) dimensions.emplace_back(tensor.stride(d), tensor.size(d));
  }
  std::ranges::sort(dimensions);
  std::int64_t last = 0;  // element of the dimensions so far
  for (const auto& [stride, size] : dimensions) {
    if (stride <= last) return true;
    last += stride * (size - 1);
  }
  return false;
}

}  // namespace

void detail::check_loadable(const std::string& name, const at::Tensor& tensor) {
  if (tensor.layout() == at::kStrided && overlaps_itself(tensor))
    throw CheckpointError(concat("tensor '", name,
                                 "': got a tensor whose elements share memory (sizes ",
                                 tensor.sizes(), ", strides ", tensor.strides(),
                                 "), expected one whose elements do not, because each gets a "
                                 "value: register its contiguous() copy"));
}

detail::ModelCopies::ModelCopies(const ModelView& model,
                                 const std::map<std::string, c10::IValue>& stored,
                                 bool convert_dtypes) {
  const auto named = tensors_of(model);
  std::set<std::string> in_model;
  std::set<const void*> memory;  // of the model
  for (const auto& [name, tensor] : named) {
    in_model.insert(name);
    if (tensor.has_storage()) memory.insert(tensor.storage().unsafeGetStorageImpl());
  }
  std::map<const void*, std::string> loaded;  // tensors of the model, and a name with values
  for (const auto& [name, tensor] : named) {
    const auto found = stored.find(name);
    if (found == stored.end()) continue;
    check_loadable(name, tensor);
    if (tensor.is_inference() && !c10::InferenceMode::is_enabled())
      throw CheckpointError(concat("tensor '", name,
                                   "': got an inference tensor, which cannot be changed outside of "
                                   "c10::InferenceMode, expected a normal one: clone() it"));
    check_fits(name, tensor, found->second, convert_dtypes);
    at::Tensor values = found->second.toTensor();
    const auto [first, is_new] = loaded.emplace(tensor.unsafeGetTensorImpl(), name);
    if (!is_new) {
      if (same_values(values, stored.at(first->second).toTensor(), tensor)) continue;
      throw CheckpointError(concat("tensor '", name, "': expected the values of '", first->second,
                                   "', because the model has one tensor under both names, found "
                                   "others"));
    }
    // A copy into one tensor would change the values of another.
    if (values.has_storage() && memory.contains(values.storage().unsafeGetStorageImpl()))
      values = values.detach().clone();
    copies_.emplace_back(tensor, std::move(values));
  }
  for (const auto& [name, tensor] : named) {
    if (!loaded.contains(tensor.unsafeGetTensorImpl())) not_loaded_.missing.push_back(name);
  }
  for (const auto& [name, value] : stored) {
    if (!in_model.contains(name)) not_loaded_.unexpected.push_back(name);
  }
}

void detail::ModelCopies::apply() const {
  const at::NoGradGuard no_grad;
  for (const auto& [to, from] : copies_) to.copy_(from);
}

NotLoaded load_state_dict(const ModelView& model, const c10::IValue& dict,
                          const LoadOptions& options) {
  return detail::as_checkpoint_error("model", [&] {
    const detail::ModelCopies copies(model, by_model_names(dict, options), options.convert_dtypes);
    const auto& [missing, unexpected] = copies.not_loaded();
    if (options.strict && !missing.empty())
      throw CheckpointError(
          concat("tensor '", missing[0], "': is in the model, but not in the state dict"));
    if (options.strict && !unexpected.empty())
      throw CheckpointError(
          concat("tensor '", unexpected[0], "': is in the state dict, but not in the model"));
    copies.apply();
    return copies.not_loaded();
  });
}

NotLoaded load_state_dict(const ModelView& model, const std::map<std::string, at::Tensor>& tensors,
                          const LoadOptions& options) {
  auto dict = detail::empty_dict();
  for (const auto& [name, tensor] : tensors) dict.insert(name, tensor);
  return load_state_dict(model, c10::IValue(dict), options);
}

}  // namespace lockstep
