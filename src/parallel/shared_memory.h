#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

#include "lockstep/group.h"

namespace lockstep::inline v0_2::detail {

/// Whether all ranks of the group can use one rank's memory.
bool shares_memory(const Group& group);

/// Memory that is the same on every rank: flat bytes, 64-byte aligned, uninitialised. It lies in
/// rank 0's heap, for as long as some rank has a tensor over it.
/// Ranks: all of the group, with the same bytes; shares_memory() must hold.
/// Throws: CommError on rank 0 when the machine has not that much memory.
at::Tensor shared_memory(const Group& group, std::size_t bytes);

}  // namespace lockstep::detail
