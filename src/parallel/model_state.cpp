#include "parallel/model_state.h"

#include <torch/nn/module.h>

#include <unordered_set>

#include "core/text.h"
#include "lockstep/broadcast_parameters.h"
#include "parallel/agree.h"
#include "parallel/bundle.h"
#include "parallel/tensor_checksum.h"

namespace lockstep::inline v0_2 {
namespace detail {
namespace {

/// Units: bytes. Bounds the memory that a broadcast takes beside the model.
constexpr std::size_t most_at_once = std::size_t{32} << 20;

std::vector<NamedTensor> unique(const torch::OrderedDict<std::string, at::Tensor>& named) {
  std::vector<NamedTensor> tensors;
  std::unordered_set<const void*> seen;
  for (const auto& entry : named) {
    if (seen.insert(entry.value().unsafeGetTensorImpl()).second) {
      tensors.push_back({.name = entry.key(), .tensor = entry.value()});
    }
  }
  return tensors;
}

std::string line(std::string_view kind, const NamedTensor& named, bool with_values) {
  const auto& tensor = named.tensor;
  auto text =
      concat(kind, ' ', named.name, ' ', toString(tensor.scalar_type()), ' ', tensor.sizes());
  // Gradients lie in memory as their parameters do.
  if (!tensor.is_contiguous()) text += concat(" strides ", tensor.strides());
  if (kind == "parameter" && !tensor.requires_grad()) text += " frozen";
  if (with_values) text += concat(" values ", std::hex, checksum(tensor));
  return text;
}

}  // namespace

ModelState::ModelState(const torch::nn::Module& module)
    : parameters(unique(module.named_parameters())), buffers(unique(module.named_buffers())) {}

std::vector<std::string> describe(const ModelState& state, bool with_values) {
  std::vector<std::string> lines;
  for (const auto& named : state.parameters) lines.push_back(line("parameter", named, with_values));
  for (const auto& named : state.buffers) lines.push_back(line("buffer", named, with_values));
  return lines;
}

void broadcast(const ModelState& state, const Group& group, int root) {
  std::vector<at::Tensor> together;
  std::size_t bytes = 0;
  const auto send = [&] {
    Bundle bundle(std::move(together), group);
    bundle.begin_broadcast(root);
    bundle.end();
    together.clear();
    bytes = 0;
  };
  for (const auto* tensors : {&state.parameters, &state.buffers}) {
    for (const auto& [name, tensor] : *tensors) {
      if (bytes > 0 && bytes + tensor.nbytes() > most_at_once) send();
      together.push_back(tensor);
      bytes += tensor.nbytes();
    }
  }
  if (!together.empty()) send();
}

}  // namespace detail

void broadcast_parameters(const torch::nn::Module& module, const Group& group, int root) {
  const detail::ModelState state(module);
  detail::agree(group, "broadcast_parameters", detail::describe(state, false));
  detail::broadcast(state, group, root);
}

}  // namespace lockstep
