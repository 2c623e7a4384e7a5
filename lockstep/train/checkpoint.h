#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "lockstep/group.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace lockstep {

/// What a checkpoint holds beside the model and the optimizer.
struct CheckpointMeta {
  std::int64_t epoch = 0;                      ///< epochs that are done
  std::map<std::string, std::string> notes{};  ///< whatever else the program wants back
};

/// Writes one safetensors file: parameters and buffers under their own names, what the optimizer
/// remembers of a parameter under "optimizer/<parameter>/<field>", its options and the rest as
/// text. The file is replaced at once when all of it is on disk; on an error the one that was there
/// stays. Serves every torch::optim optimizer but LBFGS, which LibTorch itself cannot write after
/// its first step.
/// Throws: CheckpointError naming file, tensor and cause.
void save_checkpoint(const std::filesystem::path& path, const torch::nn::Module& model,
                     const torch::optim::Optimizer& optimizer, const CheckpointMeta& meta = {});

/// The same for a group: rank 0 writes.
/// Ranks: all.
/// Throws: CheckpointError on every rank.
void save_checkpoint(const std::filesystem::path& path, const torch::nn::Module& model,
                     const torch::optim::Optimizer& optimizer, const CheckpointMeta& meta,
                     const Group& group);

/// Restores what save_checkpoint wrote, the optimizer's options (as its learning rate) included.
/// Everything is compared with the model and the optimizer before either is changed. Parameters
/// keep their memory, so the call may come before or after wrapping the model.
/// Throws: CheckpointError naming file, tensor, what was found and what was expected.
CheckpointMeta load_checkpoint(const std::filesystem::path& path, torch::nn::Module& model,
                               torch::optim::Optimizer& optimizer);

/// The same for a group: rank 0 reads and sends the file to all, so only its host needs to have it.
/// Ranks: all.
/// Throws: CheckpointError on every rank, and no rank's model is changed.
CheckpointMeta load_checkpoint(const std::filesystem::path& path, torch::nn::Module& model,
                               torch::optim::Optimizer& optimizer, const Group& group);

/// Finds out at the start of a long run whether a checkpoint could be written here, and leaves
/// nothing behind.
/// Ranks: all.
/// Throws: CheckpointError on every rank.
void check_checkpoint_path(const std::filesystem::path& path, const Group& group);

}  // namespace lockstep
