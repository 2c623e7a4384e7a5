#pragma once

#include <filesystem>

#include "lockstep/group.h"
#include "lockstep/model_files.h"

namespace lockstep::inline v0_2::detail {

/// One file of all ranks' contents; names must differ between ranks, the metadata is rank 0's.
/// Rank 0 writes what the others send, tensor by tensor, and never holds more of it than a chunk.
/// Ranks: all.
/// Throws: CheckpointError on every rank, naming file and tensor.
void write_together(const std::filesystem::path& path, const safetensors::Content& own,
                    const Group& group);

/// All ranks' contents on rank 0, and on the others their own; what is sent is no part of rank 0's.
/// Ranks: all.
/// Throws: CheckpointError on every rank, naming file and tensor.
safetensors::Content collect(const std::filesystem::path& path, safetensors::Content own,
                             const Group& group);

/// The content of a file for each rank: the shared tensors, and its own. Rank 0 reads.
/// Ranks: all.
/// Throws: CheckpointError on every rank, naming file and tensor.
safetensors::Content read_together(const std::filesystem::path& path, const Group& group);

}  // namespace lockstep::detail
