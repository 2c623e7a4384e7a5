#include "checkpoint/checkpoint_content.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <array>
#include <mutex>

#include "core/environment.h"
#include "core/failure.h"
#include "core/log.h"
#include "core/system/denormals_guard.h"
#include "core/text.h"
#include "lockstep/denormals.h"
#include "lockstep/error.h"
#include "parallel/reducer/model_state.h"

namespace lockstep::inline v0_2::detail {

namespace {

constexpr const char* version_key = "lockstep";
constexpr const char* version = "1";
constexpr const char* epoch_key = "epoch";
constexpr const char* ranks_key = "ranks";
constexpr const char* score_key = "score";
constexpr const char* denormals_key = "denormals";
constexpr const char* optimizer_key = "optimizer";
constexpr const char* rate_key = "learning_rate";
constexpr std::string_view note_prefix = "note.";
constexpr std::string_view alias_prefix = "alias.";
constexpr std::string_view sampler_prefix = "sampler/";
constexpr std::string_view extra_prefix = "extra/";
constexpr std::string_view rank_prefix = "rank/";
constexpr std::string_view strategy_prefix = "strategy/";
constexpr const char* random_name = "random";

std::string prefix_of(int rank) { return concat(rank_prefix, rank, '/'); }

const std::string& metadata_of(const safetensors::Content& content, const char* key) {
  const auto found = content.metadata.find(key);
  if (found == content.metadata.end())
    throw CheckpointError(
        concat("expected a Lockstep checkpoint, found no '", key, "' in its metadata"));
  return found->second;
}

std::optional<std::int64_t> number_in(const std::string& text) {
  const auto value = parse_number<std::int64_t>(text);
  return value.value_or(-1) < 0 ? std::nullopt : value;
}

std::int64_t number(const safetensors::Content& content, const char* key) {
  const std::string& text = metadata_of(content, key);
  const auto value = number_in(text);
  if (!value) throw CheckpointError(concat(key, ": expected a number, found '", text, "'"));
  return *value;
}

CheckpointMeta meta_of(const safetensors::Content& content) {
  if (const std::string& found = metadata_of(content, version_key); found != version)
    throw CheckpointError(concat("expected format version ", version, ", found '", found, "'"));
  if (!content.checked) throw CheckpointError("header: expected digests, found none");
  CheckpointMeta meta{
      .epoch = number(content, epoch_key), .notes = {}, .score = score_of(content.metadata)};
  for (const auto& [key, text] : content.metadata)
    if (key.starts_with(note_prefix)) meta.notes[key.substr(note_prefix.size())] = text;
  return meta;
}

std::string prefix_of_extra(const std::string& name) {
  // With '/' one name could be the prefix of another.
  if (name.empty() || name.find('/') != std::string::npos)
    throw CheckpointError(concat("extra '", name, "': expected a name without '/'"));
  return concat(extra_prefix, name, '/');
}

bool has_residual(const State& state) {
  return std::ranges::any_of(state, [](const auto& named) { return is_residual(named.first); });
}

/// A strategy's state for another number of ranks. Each rank gets the sum of the residuals that it
/// received, so that their sum over all ranks does not change. All other values are the same on
/// every rank. own: the strategy's current state, which has every name.
State redistributed(const safetensors::Content& content, const State& own) {
  State state = with_prefix(content.tensors, concat(prefix_of(0), strategy_prefix));
  std::erase_if(state, [](const auto& named) { return is_residual(named.first); });
  if (state.empty()) return state;
  for (const auto& [name, tensor] : own) {
    if (is_residual(name)) {
      state.emplace(name, at::zeros_like(tensor, tensor.options().device(at::kCPU)));
    }
  }
  // read_on_all_ranks() has sent this rank only the residuals that it must add.
  for (const auto& [name, tensor] : content.tensors) {
    const auto owner = owner_of(name);
    if (!owner || !is_residual(name)) continue;
    const auto own_name = name.substr(prefix_of(*owner).size() + strategy_prefix.size());
    auto& sum = state[own_name];
    // A residual of another size replaces the sum, so that the strategy rejects it.
    sum = sum.defined() && sum.sizes() == tensor.sizes() ? sum + tensor : tensor;
  }
  return state;
}

/// Adds the strategy's current values that a saved state does not have, or has in other sizes.
/// Returns whether there were none.
bool fill_missing(State& saved, const State& own) {
  bool was_complete = true;
  for (const auto& [name, tensor] : own) {
    const auto found = saved.find(name);
    if (found != saved.end() && found->second.sizes() == tensor.sizes()) continue;
    saved.insert_or_assign(name, tensor);
    was_complete = false;
  }
  return was_complete;
}

}  // namespace

State with_prefix(const State& tensors, std::string_view prefix) {
  State state;
  for (auto entry = tensors.lower_bound(std::string(prefix));
       entry != tensors.end() && entry->first.starts_with(prefix); ++entry)
    state.emplace(entry->first.substr(prefix.size()), entry->second);
  return state;
}

at::Tensor tensor_of(const std::string& text) {
  auto bytes = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::ranges::copy(text, bytes.data_ptr<std::uint8_t>());
  return bytes;
}

std::string text_in(const at::Tensor& bytes) {
  if (bytes.scalar_type() != at::kByte)
    throw CheckpointError(concat("optimizer: expected Byte, found ", bytes.scalar_type()));
  const auto* begin = bytes.const_data_ptr<std::uint8_t>();
  return {begin, begin + bytes.numel()};
}

State copy_of(const State& state) {
  State copy;
  for (const auto& [name, tensor] : state) copy.emplace(name, tensor.clone());
  return copy;
}

safetensors::Content content_of(const Checkpoint& checkpoint, const CheckpointMeta& meta, int rank,
                                int ranks) {
  safetensors::Content content;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    safetensors::check_storable("", name, tensor);
    if (!content.tensors.emplace(name, tensor).second)
      throw CheckpointError(concat("tensor '", name, "': the name occurs twice"));
  };
  const auto of_model = tensors_of(checkpoint.model);
  for (const auto& [name, tensor] : of_model) check_loadable(name, tensor);
  if (meta.epoch < 0)
    throw CheckpointError(concat("epoch: got ", meta.epoch, ", expected 0 or more"));
  if (rank == 0) {
    std::map<const void*, std::string> stored;  // the model's tensors, and their first names
    for (const auto& [name, tensor] : of_model) {
      const auto [first, is_new] = stored.emplace(tensor.unsafeGetTensorImpl(), name);
      if (is_new)
        add(name, tensor);
      else
        content.metadata[concat(alias_prefix, name)] = first->second;
    }
    if (checkpoint.optimizer) {
      OptimizerState state = optimizer_state(*checkpoint.optimizer, checkpoint.model);
      for (const auto& [name, tensor] : state.tensors) add(name, tensor);
      content.metadata[optimizer_key] = std::move(state.description);
    }
    if (checkpoint.rate) content.metadata[rate_key] = checkpoint.rate.state();
    for (const auto& [name, tensor] : checkpoint.sampler.state())
      add(concat(sampler_prefix, name), tensor);
    for (const auto& [name, object] : checkpoint.extra)
      for (const auto& [field, tensor] : object.state()) add(prefix_of_extra(name) + field, tensor);
    for (const auto& [key, text] : meta.notes) content.metadata[concat(note_prefix, key)] = text;
    content.metadata[version_key] = version;
    content.metadata[epoch_key] = std::to_string(meta.epoch);
    content.metadata[ranks_key] = std::to_string(ranks);
    content.metadata[denormals_key] = denormals_text(flushes_denormals());
    if (meta.score) content.metadata[score_key] = detail::shortest(*meta.score);
  } else if (checkpoint.optimizer && checkpoint.strategy.replicas_may_differ()) {
    const auto state = optimizer_state(*checkpoint.optimizer, checkpoint.model);
    for (const auto& [name, tensor] : state.tensors) add(prefix_of(rank) + name, tensor);
    add(prefix_of(rank) + optimizer_key, tensor_of(state.description));
  }
  for (const auto& [name, tensor] : checkpoint.strategy.state())
    add(concat(prefix_of(rank), strategy_prefix, name), tensor);
  if (checkpoint.generator.defined()) {
    at::Generator generator = checkpoint.generator;
    const std::lock_guard lock(generator.mutex());
    add(prefix_of(rank) + random_name, generator.get_state());
  }
  return content;
}

std::map<std::string, at::Tensor> future_tensors(const Checkpoint& checkpoint) {
  auto tensors = content_of(checkpoint, {}, 0, 1).tensors;
  if (checkpoint.optimizer) tensors.merge(future_state(*checkpoint.optimizer, checkpoint.model));
  return tensors;
}

std::optional<double> score_of(const std::map<std::string, std::string>& metadata) {
  const auto found = metadata.find(score_key);
  if (found == metadata.end()) return std::nullopt;
  const auto score = parse_number<double>(found->second);
  if (!score)
    throw CheckpointError(concat(score_key, ": expected a number, found '", found->second, "'"));
  return score;
}

std::optional<int> owner_of(std::string_view tensor) {
  if (!tensor.starts_with(rank_prefix)) return std::nullopt;
  tensor.remove_prefix(rank_prefix.size());
  const auto end = tensor.find('/');
  const auto rank = parse_number<int>(tensor.substr(0, end));
  return end == tensor.npos || rank.value_or(-1) < 0 ? std::nullopt : rank;
}

std::optional<std::int64_t> ranks_of(const std::map<std::string, std::string>& metadata) {
  const auto found = metadata.find(ranks_key);
  return found == metadata.end() ? std::nullopt : number_in(found->second);
}

std::optional<int> receiver_of(std::string_view tensor, std::optional<std::int64_t> saved_by,
                               int ranks) {
  const auto owner = owner_of(tensor);
  if (!owner) return std::nullopt;
  const bool is_shared = owner == 0 && !is_residual(tensor) &&
                         tensor.substr(prefix_of(0).size()).starts_with(strategy_prefix);
  if (is_shared && saved_by != ranks) return std::nullopt;
  return *owner % ranks;
}

Restoration::Restoration(const Checkpoint& checkpoint, safetensors::Content content, int rank,
                         int ranks)
    : rank_(rank),
      ranks_(ranks),
      saved_by_(number(content, ranks_key)),
      resumed_{.meta = meta_of(content), .changes = {}} {
  compare_denormals(content);
  prepare_model(checkpoint, content);
  prepare_optimizer_state(checkpoint, content);
  if (checkpoint.rate) {
    rate_ = metadata_of(content, rate_key);
    checkpoint.rate.check_state(rate_);
  }
  const auto add_state = [&](const std::string& what, const Stateful& object,
                             std::string_view prefix) {
    if (!object) return;
    State state = with_prefix(content.tensors, prefix);
    // The file has no trace of an object whose state was empty.
    if (state.empty() && !object.state().empty())
      throw CheckpointError(concat(what, ": is in the program, but not in the file"));
    states_.push_back({what, object, std::move(state)});
  };
  for (const auto& [name, object] : checkpoint.extra)
    add_state(concat("extra '", name, '\''), object, prefix_of_extra(name));
  add_state("sampler", checkpoint.sampler, sampler_prefix);
  prepare_rank_state(checkpoint, content);
}

void Restoration::compare_denormals(const safetensors::Content& content) {
  // Versions that did not store this could not flush denormals.
  const auto found = content.metadata.find(denormals_key);
  const std::string_view saved =
      found == content.metadata.end() ? denormals_text(false) : found->second;
  const auto resumed = denormals_text(flushes_denormals());
  if (saved == resumed) return;
  add_change(concat("saved with denormals ", saved, ", resumed with denormals ", resumed,
                    ": results may differ in their last bits"));
  if (rank_ == 0) log::warn(concat("checkpoint: ", resumed_.changes));
}

void Restoration::prepare_model(const Checkpoint& checkpoint, safetensors::Content& content) {
  for (const auto& [key, stored] : content.metadata) {
    if (!key.starts_with(alias_prefix)) continue;
    const auto found = content.tensors.find(stored);
    if (found == content.tensors.end())
      throw CheckpointError(concat(key, ": expected the name of a tensor, found '", stored, "'"));
    content.tensors.emplace(key.substr(alias_prefix.size()), found->second);
  }
  copies_ = ModelCopies(checkpoint.model, {content.tensors.begin(), content.tensors.end()}, false);
  const auto& [missing, unexpected] = copies_.not_loaded();
  if (!missing.empty())
    throw CheckpointError(
        concat("tensor '", missing[0], "': is in the model, but not in the file"));
  for (const auto& name : unexpected)
    if (!name.starts_with(optimizer_prefix) && !name.starts_with(sampler_prefix) &&
        !name.starts_with(extra_prefix) && !name.starts_with(rank_prefix))
      throw CheckpointError(concat("tensor '", name, "': is in the file, but not in the model"));
  // A list of named tensors may have names that begin as those below do.
  for (const auto& [name, tensor] : tensors_of(checkpoint.model)) content.tensors.erase(name);
}

void Restoration::prepare_optimizer_state(const Checkpoint& checkpoint,
                                          const safetensors::Content& content) {
  if (!checkpoint.optimizer) return;
  const bool differs_by_rank = checkpoint.strategy.replicas_may_differ();
  OptimizerState state{.description = metadata_of(content, optimizer_key), .tensors = {}};
  for (const auto& [name, tensor] : content.tensors)
    if (name.starts_with(optimizer_prefix)) state.tensors.emplace(name, tensor);
  if (differs_by_rank && saved_by_ == ranks_) {
    const auto own = with_prefix(content.tensors, prefix_of(rank_));
    if (const auto found = own.find(optimizer_key); found != own.end()) {
      // This rank's optimizer may have state of other parameters than rank 0's.
      state = {.description = text_in(found->second), .tensors = {}};
    }
    for (const auto& [name, tensor] : own)
      if (name.starts_with(optimizer_prefix)) state.tensors.insert_or_assign(name, tensor);
  } else if (differs_by_rank) {
    add_change("every rank's optimizer continues from rank 0's state");
  }
  optimizer_ = prepare_optimizer(state, *checkpoint.optimizer, checkpoint.model);
}

void Restoration::prepare_rank_state(const Checkpoint& checkpoint,
                                     const safetensors::Content& content) {
  if (saved_by_ != ranks_)
    add_change(concat("saved by ", plural(saved_by_, "rank"), ", resumed by ", ranks_));
  if (checkpoint.strategy) {
    const State own = checkpoint.strategy.state();
    State state = saved_by_ == ranks_
                      ? with_prefix(content.tensors, concat(prefix_of(rank_), strategy_prefix))
                      : redistributed(content, own);
    if (!state.empty()) {
      if (!has_residual(own) && has_residual(state))
        add_change("the residuals of the file's strategy are not used");
      else if (has_residual(own) && saved_by_ != ranks_)
        // Rank 0, whose text counts, has those of the old rank 0.
        add_change(has_residual(content.tensors)
                       ? "the residuals of the strategy are redistributed over the ranks"
                       : "the residuals of the strategy are zero: the file has none");
      if (!fill_missing(state, own))
        add_change(
            "some values of the strategy's state do not change: the file has the state of another "
            "strategy");
      states_.insert(states_.begin(), {"strategy", checkpoint.strategy, std::move(state)});
    } else if (!own.empty()) {
      add_change("the strategy's state does not change: the file has none");
    }
  }
  if (checkpoint.generator.defined()) {
    const auto found = content.tensors.find(prefix_of(rank_) + random_name);
    if (found != content.tensors.end()) {
      random_ = found->second;
      as_checkpoint_error(concat("tensor '", found->first, '\''),
                          [&] { checkpoint.generator.clone().set_state(random_); });
    }
    if (saved_by_ != ranks_)
      add_change("ranks continue their random state where the file has one");
    else if (!random_.defined())
      add_change("the random state does not change: the file has none");
  }
}

void Restoration::add_change(const std::string& text) {
  if (!resumed_.changes.empty()) resumed_.changes += "; ";
  resumed_.changes += text;
}

void Restoration::load_states() {
  for (auto& [what, object, state, previous] : states_) {
    try {
      previous = copy_of(object.state());
      object.load_state(state);
    } catch (const CommError&) {
      throw;
    } catch (const std::exception& error) {
      throw CheckpointError(concat(what, ": ", without_backtrace(error.what())));
    }
  }
}

void Restoration::restore_states() const {
  for (const auto& [what, object, state, previous] : states_) {
    if (!previous) continue;
    try {
      object.load_state(*previous);
    } catch (const std::exception&) {
      // The caller rethrows the first error.
    }
  }
}

void Restoration::apply(const Checkpoint& checkpoint) {
  if (checkpoint.optimizer) optimizer_.apply(*checkpoint.optimizer);
  if (checkpoint.rate) checkpoint.rate.load_state(rate_);
  if (random_.defined()) {
    at::Generator generator = checkpoint.generator;
    const std::lock_guard lock(generator.mutex());
    generator.set_state(random_);
  }
  copies_.apply();
}

}  // namespace lockstep::detail
