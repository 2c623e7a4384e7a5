#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "lockstep/group.h"
#include "lockstep/train/learning_rate.h"
#include "lockstep/train/stateful.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace lockstep {

/// What a checkpoint tells beside what it holds.
struct CheckpointMeta {
  std::int64_t epoch = 0;                      ///< epochs that are done
  std::map<std::string, std::string> notes{};  ///< whatever else the program wants back
  std::optional<double> score{};               ///< how good the model is, higher being better
};

/// What load found.
struct Resumed {
  CheckpointMeta meta;
  std::string changes;  ///< in words, what could not be as it was; empty when all is
};

/// All that a training program needs to go on where it stopped, by reference.
///
///     lockstep::Checkpoint checkpoint{.model = *model, .optimizer = &sgd, .rate = &rate};
///     checkpoint.save("run.safetensors", {.epoch = 3}, world);
///     const auto [meta, changes] = checkpoint.load("run.safetensors", world);
///
/// One safetensors file: parameters and buffers under their own names, what the optimizer remembers
/// of a parameter under "optimizer/<parameter>/<field>", what belongs to one rank under
/// "rank/<rank>/", digests of all. The file is replaced at once when all of it is on disk; on an
/// error the one that was there stays. Loading compares everything before anything is changed;
/// parameters keep their memory, so it may come before or after wrapping the model.
/// Serves every torch::optim optimizer but LBFGS, which LibTorch itself cannot write after its
/// first step.
struct Checkpoint {
  torch::nn::Module& model;
  torch::optim::Optimizer* optimizer = nullptr;
  LearningRate* rate = nullptr;
  Stateful sampler{};         ///< the same on every rank
  Stateful strategy{};        ///< of each rank: the wrapper whose exchanges remember something
  at::Generator generator{};  ///< of each rank, as at::detail::getDefaultCPUGenerator()

  /// Throws: CheckpointError naming file, tensor and cause.
  void save(const std::filesystem::path& path, const CheckpointMeta& meta = {}) const;
  /// The same for a group: rank 0 writes what all share, then every rank's own, one rank at a time.
  /// Ranks: all.
  /// Throws: CheckpointError on every rank.
  void save(const std::filesystem::path& path, const CheckpointMeta& meta,
            const Group& group) const;

  /// Restores what save wrote, the optimizer's options (as its learning rate) included. What this
  /// refers to must be in the file, but for a strategy's state; what more the file holds is left.
  /// Throws: CheckpointError naming file, tensor, what was found and what was expected.
  Resumed load(const std::filesystem::path& path) const;
  /// The same for a group, of as many ranks as saved it or another number: rank 0 reads and sends,
  /// so only its host needs to have the file.
  /// Ranks: all.
  /// Throws: CheckpointError on every rank, and no rank's model is changed.
  Resumed load(const std::filesystem::path& path, const Group& group) const;
};

/// Saves model and optimizer.
/// Ranks: all, when there is a group.
/// Throws: CheckpointError on every rank.
void save_checkpoint(const std::filesystem::path& path, torch::nn::Module& model,
                     torch::optim::Optimizer& optimizer, const CheckpointMeta& meta = {});
void save_checkpoint(const std::filesystem::path& path, torch::nn::Module& model,
                     torch::optim::Optimizer& optimizer, const CheckpointMeta& meta,
                     const Group& group);

/// Restores model and optimizer.
/// Ranks: all, when there is a group.
/// Throws: CheckpointError on every rank, and no rank's model is changed.
CheckpointMeta load_checkpoint(const std::filesystem::path& path, torch::nn::Module& model,
                               torch::optim::Optimizer& optimizer);
CheckpointMeta load_checkpoint(const std::filesystem::path& path, torch::nn::Module& model,
                               torch::optim::Optimizer& optimizer, const Group& group);

/// Finds out at the start of a long run whether a checkpoint could be written here, and leaves
/// nothing behind.
/// Ranks: all.
/// Throws: CheckpointError on every rank.
void check_checkpoint_path(const std::filesystem::path& path, const Group& group);

}  // namespace lockstep
