#pragma once

#include <cstddef>
#include <vector>

#include "tests/device/simulation/nccl_world.h"

namespace lockstep::simulation::nccl {

/// Bytes of an element, 0 for a dtype that the double does not have.
std::size_t width(int dtype);

/// The result of a collective for one rank, of what all ranks announced and the start of their
/// memory. It reduces in the order of ranks: float and double in their dtype, 16-bit floats in
/// float.
std::vector<std::byte> compute(const std::vector<const Announcement*>& ranks,
                               const std::vector<const std::byte*>& memory, int rank);

}  // namespace lockstep::simulation::nccl
