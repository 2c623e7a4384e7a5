#pragma once

#include <filesystem>

#include "lockstep/group.h"
#include "lockstep/model_files.h"

namespace lockstep::inline v0_2::detail {

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
