#include "parallel/reducer/model_state.h"

#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

#include "core/text.h"
#include "group/tensors.h"
#include "lockstep/error.h"
#include "parallel/agree.h"
#include "parallel/reducer/buffer_sync.h"
#include "parallel/reducer/consistency_check.h"
#include "parallel/reducer/gradient.h"
#include "parallel/reducer/parameter_hooks.h"

namespace lockstep::inline v0_2 {
namespace detail {
namespace {

/// Most bytes that one broadcast copies, unless a single tensor is larger.
constexpr std::size_t max_broadcast_bytes = std::size_t{32} << 20;

std::vector<NamedTensor> unique(std::vector<NamedTensor> tensors) {
  std::unordered_set<const void*> listed;
  std::erase_if(tensors, [&](const NamedTensor& named) {
    return !listed.insert(named.tensor.unsafeGetTensorImpl()).second;
  });
  return tensors;
}

std::string line(std::string_view kind, const NamedTensor& named, bool sparse, bool with_values) {
  const auto& tensor = named.tensor;
  auto text =
      concat(kind, ' ', named.name, ' ', toString(tensor.scalar_type()), ' ', tensor.sizes());
  // A gradient has its parameter's strides, so they must be equal on all ranks.
  if (!tensor.is_contiguous()) text += concat(" strides ", tensor.strides());
  if (kind == "parameter" && !tensor.requires_grad()) text += " frozen";
  if (sparse) text += " with sparse gradients";
  if (with_values) text += concat(" values ", std::hex, checksum(tensor));
  return text;
}

bool is_reducible(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf ||
         dtype == at::kBFloat16;
}

/// Checks that values can be copied into the tensor.
void check_copyable(std::string_view kind, const std::string& name, const at::Tensor& tensor,
                    const Group& group) {
  const auto fail = [&](const auto&... what) {
    throw InvalidArgument(concat(kind, ' ', name, ": ", what...));
  };
  if (tensor.layout() != at::kStrided || tensor.device() != group.device()) {
    fail("got layout ", tensor.layout(), " on ", tensor.device(), ", expected a dense tensor on ",
         group.device(), ": convert it before you wrap the model");
  }
  if (!has_values_in_memory(tensor)) fail(without_values(tensor));
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    fail("got an expanded tensor, whose elements share memory (sizes ", tensor.sizes(),
         ", strides ", tensor.strides(),
         "), expected a tensor whose elements do not share memory: register "
         "its contiguous() copy");
  }
}

}  // namespace

ModelState::ModelState(const ModelView& model)
    : view(model), parameters(unique(model.parameters())), buffers(unique(model.buffers())) {
  model.tensors().add_sparse(sparse);
}

void ModelState::declare_sparse(const std::vector<std::string>& names) {
  for (const auto& name : names) {
    const auto named = std::ranges::find(parameters, name, &NamedTensor::name);
    if (named == parameters.end()) {
      throw InvalidArgument(concat("sparse_gradients: got '", name,
                                   "', expected the name of a parameter of the model"));
    }
    sparse.insert(named->tensor.unsafeGetTensorImpl());
  }
}

void ModelState::keep_optimized(const IsOptimized& is_optimized) {
  const auto rest = std::ranges::stable_partition(parameters, is_optimized, &NamedTensor::tensor);
  others.assign(rest.begin(), rest.end());
  parameters.erase(rest.begin(), rest.end());
}

std::vector<std::string> describe(const ModelState& state, bool with_values) {
  std::vector<std::string> lines;
  const auto add = [&](const char* kind, const std::vector<NamedTensor>& parameters) {
    for (const auto& named : parameters) {
      const bool is_sparse = state.has_sparse_gradient(named.tensor);
      lines.push_back(line(kind, named, is_sparse, with_values));
    }
  };
  add("parameter", state.parameters);
  add("not optimized parameter", state.others);
  for (const auto& named : state.buffers)
    lines.push_back(line("buffer", named, false, with_values));
  return lines;
}

void broadcast(const ModelState& state, const Group& group, int root) {
  std::vector<at::Tensor> batch;
  std::size_t bytes = 0;
  const auto send = [&] {
    CoalescedTensors tensors(std::move(batch), group);
    tensors.begin_broadcast(root);
    tensors.end();
    tensors.write();
    batch.clear();
    bytes = 0;
  };
  for (const auto* tensors : {&state.parameters, &state.others, &state.buffers}) {
    for (const auto& [name, tensor] : *tensors) {
      if (bytes > 0 && bytes + tensor.nbytes() > max_broadcast_bytes) send();
      batch.push_back(tensor);
      bytes += tensor.nbytes();
    }
  }
  if (!batch.empty()) send();
}

std::vector<NamedTensor> trainable(const ModelState& model, std::optional<GradientLayout> layout) {
  auto parameters = model.parameters;
  std::erase_if(parameters, [&](const NamedTensor& named) {
    const bool is_sparse = model.has_sparse_gradient(named.tensor);
    return !named.tensor.requires_grad() || (layout && GradientLayout{is_sparse} != *layout);
  });
  return parameters;
}

void check_trainable(const ModelState& model, const Group& group) {
  const auto parameters = trainable(model);
  if (parameters.empty()) {
    throw InvalidArgument("the model has no parameter that requires a gradient");
  }
  // Frozen parameters and buffers are broadcast, too.
  for (const auto* all : {&model.parameters, &model.others}) {
    for (const auto& [name, tensor] : *all) check_copyable("parameter", name, tensor, group);
  }
  for (const auto& [name, tensor] : model.buffers) check_copyable("buffer", name, tensor, group);
  for (const auto& [name, tensor] : parameters) {
    if (!tensor.is_leaf()) refuse(name, "got the result of a computation, expected a leaf");
    if (!is_reducible(tensor.scalar_type())) {
      refuse(name, concat("got ", toString(tensor.scalar_type()),
                          ", expected Float, Double, Half or BFloat16"));
    }
    ParameterHooks::check_unhooked(name, tensor);
    if (!model.has_sparse_gradient(tensor)) continue;
    if (!tensor.is_cpu()) {
      refuse(name, concat("got sparse gradients on ", tensor.device(),
                          ", which are averaged on the CPU only, expected dense ones: set sparse = "
                          "false in its layer"));
    }
    if (tensor.dim() == 0) {
      refuse(name,
             "got sparse gradients of a parameter without dimensions, expected a parameter "
             "of one or more dimensions");
    }
  }
}

}  // namespace detail

void broadcast_parameters(const ModelView& model, const Group& group, int root) {
  const detail::ModelState state(model);
  detail::agree(group, "broadcast_parameters", detail::describe(state, false));
  detail::broadcast(state, group, root);
}

}  // namespace lockstep
