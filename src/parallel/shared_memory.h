#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

#include "lockstep/data_parallel_options.h"
#include "lockstep/group.h"

namespace lockstep::inline v0_2::detail {

/// DataParallelOptions::share_memory, or its default.
/// Throws: InvalidArgument for an environment variable that cannot be used.
bool shares_memory(const DataParallelOptions& options);

/// Throws: InvalidArgument unless the ranks of the group can access each other's heaps.
void check_shares_memory(const Group& group);

/// A block of memory that all ranks access: flat bytes, 64-byte aligned, uninitialised. The block
/// is in rank 0's heap and lives until no rank has a tensor over it.
/// Ranks: all of the group, with the same bytes. check_shares_memory() must accept it.
/// Throws: CommError on rank 0 when memory is short.
at::Tensor shared_memory(const Group& group, std::size_t bytes);

}  // namespace lockstep::detail
