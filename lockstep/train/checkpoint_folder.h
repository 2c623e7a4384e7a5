#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <set>

#include "lockstep/group.h"
#include "lockstep/train/checkpoint.h"

namespace lockstep {

class CheckpointWriter;

/// What stays in a CheckpointFolder.
struct Keep {
  std::size_t last = 3;  ///< so many of the newest, at least one
  bool best = true;      ///< and the one of the highest score
};

/// A run's checkpoints, in a folder of their own: checkpoint-000001.safetensors and so on. The
/// files are all that is remembered, so a run that was killed at any moment finds them as they are.
///
///     lockstep::CheckpointFolder folder("run");
///     if (const auto resumed = folder.load_newest(checkpoint, world)) epoch = resumed->meta.epoch;
///     … folder.save(checkpoint, {.epoch = epoch, .score = accuracy}, world);
class CheckpointFolder {
 public:
  /// Throws: InvalidArgument for last = 0.
  explicit CheckpointFolder(std::filesystem::path folder, Keep keep = {});

  /// Writes the next checkpoint, makes the folder if need be, then removes what is not to be kept.
  /// Ranks: all, each with the same folder.
  /// Throws: CheckpointError on every rank.
  std::filesystem::path save(const Checkpoint& checkpoint, const CheckpointMeta& meta,
                             const Group& group);
  /// The same behind the training: returns when the writer has its copy, whose thread then writes
  /// and removes.
  /// Ranks: all, as a group that is the writer's.
  /// Throws: CheckpointError on every rank, also what went wrong with the write before; nothing is
  /// begun then.
  std::filesystem::path save_behind(CheckpointWriter& writer, const Checkpoint& checkpoint,
                                    const CheckpointMeta& meta);

  /// Loads the newest that is undamaged; those that were skipped, and why, stand in its changes.
  /// Nothing when the folder has none or is none.
  /// Ranks: all.
  /// Throws: CheckpointError on every rank, when there are but damaged ones, or the newest is of
  /// another model.
  std::optional<Resumed> load_newest(const Checkpoint& checkpoint, const Group& group);

  /// The newest, and the one of the highest score; damaged ones count. Local, not collective.
  std::optional<std::filesystem::path> newest() const;
  std::optional<std::filesystem::path> best() const;

 private:
  std::filesystem::path path_of(std::int64_t number) const;
  std::filesystem::path next_path(const Group& group) const;
  std::set<std::int64_t> numbers() const;
  std::optional<std::int64_t> best_of(const std::set<std::int64_t>& numbers) const;
  void prune() const;

  std::filesystem::path folder_;
  Keep keep_;
  std::set<std::int64_t> damaged_;
};

}  // namespace lockstep
