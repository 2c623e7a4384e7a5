#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/optimizer_state.h"
#include "core/text.h"
#include "lockstep/checkpoint.h"
#include "lockstep/error.h"
#include "lockstep/exchange.h"
#include "lockstep/model_files.h"

namespace lockstep::inline v0_2::detail {

/// Adds the file's name to what goes wrong in fn.
template <class Function>
auto named(const std::filesystem::path& path, const Function& fn) {
  try {
    return fn();
  } catch (const CheckpointError& error) {
    throw CheckpointError(concat(path.string(), ": ", error.what()),
                          {.rank = error.rank(),
                           .operation = error.operation(),
                           .cause = error.cause(),
                           .cause_kind = error.cause_kind()});
  }
}

/// The tensors that one of so many ranks writes: rank 0 the shared ones, and each rank its own.
/// Throws: CheckpointError naming the tensor.
safetensors::Content content_of(const Checkpoint& checkpoint, const CheckpointMeta& meta, int rank,
                                int ranks);

/// The tensors that rank 0 of so many will write, with the optimizer's state from its first step
/// on. Only names, sizes and dtypes are valid, for the values will be others.
/// Throws: CheckpointError naming the tensor.
std::map<std::string, at::Tensor> tensors_to_come(const Checkpoint& checkpoint, int ranks);

/// The rank whose tensor this is; nothing for a shared one.
std::optional<int> owner_of(std::string_view tensor);

/// How many ranks wrote a file, as its metadata says; nothing when it does not.
std::optional<std::int64_t> ranks_of(const std::map<std::string, std::string>& metadata);

/// The rank, of so many, that is given a tensor of a file that saved_by ranks wrote; nothing for
/// what all are given. Of another number of ranks, what one had not sent goes to another, and of
/// what all remembered alike rank 0's is everybody's.
std::optional<int> taker_of(std::string_view tensor, std::optional<std::int64_t> saved_by,
                            int ranks);

/// Of a file's metadata; nothing when it was saved without.
/// Throws: CheckpointError for what is no number.
std::optional<double> score_of(const std::map<std::string, std::string>& metadata);

/// A file's content, compared with all that it goes into, and only waiting to be put there.
class Restoration {
 public:
  Restoration() = default;
  /// Throws: CheckpointError saying what does not fit; nothing was changed.
  Restoration(const Checkpoint& checkpoint, safetensors::Content content, int rank, int ranks);

  /// The part that belongs to others, who may refuse it; and takes it back, if a rank's did.
  void load_states(const Checkpoint& checkpoint);
  void restore_states(const Checkpoint& checkpoint) const;
  /// The rest, which cannot fail.
  void apply(const Checkpoint& checkpoint);

  const Resumed& resumed() const { return resumed_; }

 private:
  void take_denormals(const safetensors::Content& content);
  void take_model(const Checkpoint& checkpoint, safetensors::Content& content);
  void take_optimizer(const Checkpoint& checkpoint, const safetensors::Content& content);
  void take_rank(const Checkpoint& checkpoint, const safetensors::Content& content);
  void note_change(const std::string& text);

  int rank_ = 0;
  int ranks_ = 1;
  std::int64_t saved_by_ = 1;                              ///< ranks
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  ///< to, from
  PreparedOptimizer optimizer_;
  std::string rate_;
  State sampler_;
  std::optional<State> strategy_;
  std::optional<State> former_strategy_;  ///< what load_states() replaces
  std::optional<State> former_sampler_;
  at::Tensor random_;
  Resumed resumed_;
};

}  // namespace lockstep::detail
