#include "lockstep/train/checkpoint.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <charconv>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/text.h"
#include "lockstep/train/atomic_file.h"
#include "lockstep/train/optimizer_state.h"
#include "lockstep/train/safetensors.h"
#include "lockstep/train/together.h"

namespace lockstep {

namespace {

using detail::concat;
using detail::OptimizerState;
using detail::ParameterNames;
using detail::PreparedOptimizer;

constexpr const char* version_key = "lockstep";
constexpr const char* version = "1";
constexpr const char* epoch_key = "epoch";
constexpr const char* optimizer_key = "optimizer";
constexpr std::string_view note_prefix = "note.";

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

NamedTensors tensors_of(const torch::nn::Module& model) {
  NamedTensors tensors;
  for (const auto& item : model.named_parameters()) tensors.emplace_back(item.key(), item.value());
  for (const auto& item : model.named_buffers()) tensors.emplace_back(item.key(), item.value());
  return tensors;
}

ParameterNames names_of(const torch::nn::Module& model) {
  ParameterNames names;
  for (const auto& item : model.named_parameters())
    names.emplace(item.value().unsafeGetTensorImpl(), item.key());
  return names;
}

/// Adds the file's name to what goes wrong in fn.
template <class Function>
auto naming(const std::filesystem::path& path, const Function& fn) {
  try {
    return fn();
  } catch (const CheckpointError& error) {
    throw CheckpointError(concat(path.string(), ": ", error.what()));
  }
}

safetensors::Content content_of(const torch::nn::Module& model,
                                const torch::optim::Optimizer& optimizer,
                                const CheckpointMeta& meta) {
  OptimizerState state = detail::optimizer_state(optimizer, names_of(model));
  safetensors::Content content{.tensors = std::move(state.tensors), .metadata = {}};
  for (const auto& [name, tensor] : tensors_of(model))
    if (!content.tensors.emplace(name, tensor).second)
      throw CheckpointError(concat("tensor '", name, "': the name occurs twice"));
  for (const auto& [key, text] : meta.notes) content.metadata[concat(note_prefix, key)] = text;
  content.metadata[version_key] = version;
  content.metadata[epoch_key] = std::to_string(meta.epoch);
  content.metadata[optimizer_key] = std::move(state.description);
  return content;
}

at::Tensor memory_for(std::int64_t bytes, const std::filesystem::path& path) {
  try {
    return at::empty({bytes}, at::kByte);
  } catch (const c10::Error&) {
    throw CheckpointError(concat(path.string(), ": no memory for the ", bytes, " bytes of it"));
  }
}

/// A file that has been compared with model and optimizer, and only waits to be put in their place.
struct Restoration {
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  ///< to, from
  PreparedOptimizer optimizer;
  CheckpointMeta meta;
};

const std::string& note(const safetensors::Content& content, const char* key) {
  const auto found = content.metadata.find(key);
  if (found == content.metadata.end())
    throw CheckpointError(
        concat("expected a Lockstep checkpoint, found no '", key, "' in its metadata"));
  return found->second;
}

CheckpointMeta meta_of(const safetensors::Content& content) {
  if (const std::string& found = note(content, version_key); found != version)
    throw CheckpointError(concat("expected format version ", version, ", found '", found, "'"));
  CheckpointMeta meta;
  const std::string& epoch = note(content, epoch_key);
  const auto [end, error] = std::from_chars(epoch.data(), epoch.data() + epoch.size(), meta.epoch);
  if (error != std::errc() || end != epoch.data() + epoch.size() || meta.epoch < 0)
    throw CheckpointError(concat("epoch: expected a number, found '", epoch, "'"));
  for (const auto& [key, text] : content.metadata)
    if (key.starts_with(note_prefix)) meta.notes[key.substr(note_prefix.size())] = text;
  return meta;
}

Restoration prepare(safetensors::Content content, const torch::nn::Module& model,
                    torch::optim::Optimizer& optimizer) {
  Restoration restoration{.copies = {}, .optimizer = {}, .meta = meta_of(content)};
  OptimizerState state{.description = note(content, optimizer_key), .tensors = {}};
  for (const auto& [name, tensor] : tensors_of(model)) {
    auto found = content.tensors.extract(name);
    if (!found)
      throw CheckpointError(concat("tensor '", name, "': the model has it, the file has not"));
    const at::Tensor& stored = found.mapped();
    if (stored.sizes() != tensor.sizes() || stored.scalar_type() != tensor.scalar_type())
      throw CheckpointError(concat("tensor '", name, "': expected ", tensor.scalar_type(), ' ',
                                   tensor.sizes(), ", found ", stored.scalar_type(), ' ',
                                   stored.sizes()));
    restoration.copies.emplace_back(tensor, stored);
  }
  for (const auto& [name, tensor] : content.tensors)
    if (!name.starts_with(detail::optimizer_prefix))
      throw CheckpointError(concat("tensor '", name, "': the file has it, the model has not"));
  state.tensors = std::move(content.tensors);
  restoration.optimizer = detail::prepare_optimizer(state, optimizer, names_of(model));
  return restoration;
}

void apply(Restoration& restoration, torch::optim::Optimizer& optimizer) {
  restoration.optimizer.apply(optimizer);
  const at::NoGradGuard no_grad;
  for (const auto& [to, from] : restoration.copies) to.copy_(from);
}

}  // namespace

void save_checkpoint(const std::filesystem::path& path, const torch::nn::Module& model,
                     const torch::optim::Optimizer& optimizer, const CheckpointMeta& meta) {
  safetensors::write(path, naming(path, [&] { return content_of(model, optimizer, meta); }));
}

void save_checkpoint(const std::filesystem::path& path, const torch::nn::Module& model,
                     const torch::optim::Optimizer& optimizer, const CheckpointMeta& meta,
                     const Group& group) {
  together(group, [&] {
    if (group.rank() == 0) save_checkpoint(path, model, optimizer, meta);
  });
}

CheckpointMeta load_checkpoint(const std::filesystem::path& path, torch::nn::Module& model,
                               torch::optim::Optimizer& optimizer) {
  safetensors::Content content = safetensors::read(path);
  return naming(path, [&] {
    Restoration restoration = prepare(std::move(content), model, optimizer);
    apply(restoration, optimizer);
    return restoration.meta;
  });
}

CheckpointMeta load_checkpoint(const std::filesystem::path& path, torch::nn::Module& model,
                               torch::optim::Optimizer& optimizer, const Group& group) {
  at::Tensor bytes;
  at::Tensor size = at::empty({1}, at::kLong);
  together(group, [&] {
    if (group.rank() != 0) return;
    bytes = safetensors::read_bytes(path);
    size.fill_(bytes.numel());
  });
  group.broadcast(size).wait();
  together(group, [&] {
    if (group.rank() != 0) bytes = memory_for(size.item<std::int64_t>(), path);
  });
  group.broadcast(bytes).wait();

  Restoration restoration;
  together(group, [&] {
    safetensors::Content content = safetensors::parse(bytes, path.string());
    bytes.reset();
    restoration = naming(path, [&] { return prepare(std::move(content), model, optimizer); });
  });
  apply(restoration, optimizer);
  return restoration.meta;
}

void check_checkpoint_path(const std::filesystem::path& path, const Group& group) {
  together(group, [&] {
    if (group.rank() == 0) detail::AtomicFile writable(path);
  });
}

}  // namespace lockstep
