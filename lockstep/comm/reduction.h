#pragma once

#include <cstddef>
#include <span>

#include "lockstep/comm/operation.h"

namespace lockstep::detail {

/// What the operation makes of count elements of each rank's input, in rank order: the same bits
/// whichever backend asks. outputs may be among inputs.
void reduce(const Operation& operation, std::span<const std::byte* const> inputs,
            std::span<std::byte* const> outputs, std::size_t count);

}  // namespace lockstep::detail
