#pragma once

#include <cstddef>
#include <span>

#include "comm/operation.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2::detail {

/// Reduces count elements of each rank's input as the operation says, in rank order. All backends
/// get the same bits. outputs may be among inputs.
void reduce(const Operation& operation, std::span<const std::byte* const> inputs,
            std::span<std::byte* const> outputs, std::size_t count);

}  // namespace lockstep::detail
