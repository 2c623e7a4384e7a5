#pragma once

#include <filesystem>
#include <functional>
#include <future>
#include <utility>

#include "lockstep/group.h"
#include "lockstep/train/checkpoint.h"
#include "lockstep/train/safetensors.h"

namespace lockstep {

/// Writes checkpoints behind the training. save() copies what is to be written into memory of rank
/// 0's and returns; a thread of rank 0 writes the file. The copy's memory is kept for the next, and
/// prepare() has it ready for the first.
///
///     lockstep::CheckpointWriter writer(world);
///     writer.prepare(checkpoint);
///     … writer.save(checkpoint, "run.safetensors", {.epoch = epoch});
///     writer.wait();
///
/// CheckpointFolder::save_behind() writes a run's numbered checkpoints in this way.
class CheckpointWriter {
 public:
  /// Ranks: all.
  explicit CheckpointWriter(Group group) : group_(std::move(group)) {}
  /// Waits for what was begun. An error of it is logged only: who must know calls wait() before.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Lets a thread of rank 0 take memory for the first copy, which costs several times as much as
  /// copying into it, while training begins and its core has nothing else to do. Does nothing once
  /// there has been a save().
  /// Ranks: all.
  /// Throws: CheckpointError on every rank, for what save() would not store either.
  void prepare(const Checkpoint& checkpoint);

  /// Waits for the write before, then takes the copy. When the file is on disk, rank 0's thread
  /// calls afterwards, whose errors are the write's.
  /// Ranks: all.
  /// Throws: CheckpointError on every rank, also what went wrong with the write before; nothing is
  /// begun then.
  void save(const Checkpoint& checkpoint, const std::filesystem::path& path,
            const CheckpointMeta& meta = {}, std::function<void()> afterwards = {});

  /// Returns when all that was begun is on disk.
  /// Ranks: all.
  /// Throws: CheckpointError on every rank.
  void wait();

  const Group& group() const { return group_; }

 private:
  Group group_;
  safetensors::Content copy_;
  std::future<void> write_;  ///< of copy_, or its preparation, on rank 0; its destructor waits
};

}  // namespace lockstep
