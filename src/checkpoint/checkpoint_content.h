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
#include "formats/state_dict.h"
#include "lockstep/checkpoint.h"
#include "lockstep/error.h"
#include "lockstep/exchange.h"
#include "lockstep/group.h"
#include "lockstep/model_files.h"

namespace lockstep::inline v0_2::detail {

/// The tensors whose names begin with prefix. Removes the prefix from the names.
State with_prefix(const State& tensors, std::string_view prefix);

/// A text as a tensor of bytes. Ranks other than 0 need it, because only rank 0 writes metadata.
at::Tensor tensor_of(const std::string& text);
/// Throws: CheckpointError for a tensor of another dtype.
std::string text_in(const at::Tensor& bytes);

/// A copy that does not share memory with the state.
State copy_of(const State& state);

/// The content that a rank writes: its own tensors, and on rank 0 also the shared ones and the
/// metadata.
/// Throws: CheckpointError with the name of the tensor.
safetensors::Content content_of(const Checkpoint& checkpoint, const CheckpointMeta& meta, int rank,
                                int ranks);

/// The tensors that rank 0 will write after the optimizer's first step. Only names, sizes and
/// dtypes are valid.
/// Throws: CheckpointError with the name of the tensor.
std::map<std::string, at::Tensor> future_tensors(const Checkpoint& checkpoint);

/// The rank that wrote a tensor; nullopt for a shared tensor. From its name.
std::optional<int> owner_of(std::string_view tensor);

/// The number of ranks that wrote a file, from its metadata; nullopt if that has none.
std::optional<std::int64_t> ranks_of(const std::map<std::string, std::string>& metadata);

/// The rank that receives a tensor when ranks load a file that saved_by ranks wrote; nullopt if all
/// receive it. If the numbers differ, rank r receives the residuals of the old ranks r, r + ranks,
/// … All ranks receive the rest of the strategy's state from rank 0's.
std::optional<int> receiver_of(std::string_view tensor, std::optional<std::int64_t> saved_by,
                               int ranks);

/// The score in a file's metadata; nullopt if it has none.
/// Throws: CheckpointError if it is not a number.
std::optional<double> score_of(const std::map<std::string, std::string>& metadata);

/// The content of a file, checked against the objects of a Checkpoint and ready to be loaded into
/// them.
class Restoration {
 public:
  Restoration() = default;
  /// Throws: CheckpointError when content and objects do not match. Changes no object.
  Restoration(const Checkpoint& checkpoint, safetensors::Content content, int rank, int ranks);

  /// Loads the states of strategy, extra objects and sampler, which may throw. restore_states()
  /// reverts that, for when it has thrown on some rank.
  /// Throws: CheckpointError naming the object.
  void load_states();
  void restore_states() const;
  /// Loads everything else. Does not throw.
  void apply(const Checkpoint& checkpoint);

  const Resumed& resumed() const { return resumed_; }

 private:
  /// A state that load_states() loads into an object.
  struct ObjectState {
    std::string what;  ///< for messages
    Stateful object;
    State state;
    std::optional<State> previous{};  ///< before it was loaded
  };

  void compare_denormals(const safetensors::Content& content);
  void prepare_model(const Checkpoint& checkpoint, safetensors::Content& content);
  void prepare_optimizer_state(const Checkpoint& checkpoint, const safetensors::Content& content);
  void prepare_rank_state(const Checkpoint& checkpoint, const safetensors::Content& content);
  void add_change(const std::string& text);

  int rank_ = 0;
  int ranks_ = 1;
  std::int64_t saved_by_ = 1;  ///< number of ranks
  ModelCopies copies_;
  PreparedOptimizer optimizer_;
  std::string rate_;
  std::vector<ObjectState> states_;
  at::Tensor random_;
  Resumed resumed_;
};

/// Writes all ranks' tensors and rank 0's metadata into one file. Tensor names must differ between
/// ranks. Rank 0 writes what the others send, one chunk at a time.
/// Ranks: all.
/// Throws: CheckpointError, on every rank, with file and tensor.
void write_from_all_ranks(const std::filesystem::path& path, const safetensors::Content& own,
                          const Group& group);

/// Gathers all ranks' tensors on rank 0. Other ranks return their own content.
/// Ranks: all.
/// Throws: CheckpointError, on every rank, with file and tensor.
safetensors::Content gather_content(const std::filesystem::path& path, safetensors::Content own,
                                    const Group& group);

/// Reads a file on rank 0 and sends each rank the shared tensors and its own.
/// Ranks: all.
/// Throws: CheckpointError, on every rank, with file and tensor.
safetensors::Content read_on_all_ranks(const std::filesystem::path& path, const Group& group);

}  // namespace lockstep::detail
