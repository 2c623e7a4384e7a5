#pragma once

#include <cstddef>
#include <span>

#include "comm/operation.h"
#include "kernels/reduce.h"

namespace lockstep::inline v0_2::detail {

/// Reduces count elements of each rank's input in rank order, with the operation's reduction, dtype
/// and wire. All backends use it and get the same bits. An output may be one of the inputs.
inline void reduce(const Operation& operation, std::span<const std::byte* const> inputs,
                   std::span<std::byte* const> outputs, std::size_t count) {
  if (operation.wire) {
    kernels::reduce_rounded(*operation.wire, operation.reduce, inputs, outputs, count);
  } else {
    kernels::reduce(operation.dtype, operation.reduce, inputs, outputs, count);
  }
}

}  // namespace lockstep::detail
