#pragma once

#include <cstddef>

#include "comm/operation.h"

namespace lockstep::inline v0_2::device {

/// Elements of the buffers of an operation on one rank; 0 for a buffer that the rank does not use.
struct BufferElements {
  std::size_t input = 0;
  std::size_t output = 0;
};

BufferElements buffer_elements(const Operation& operation, int rank, int size);

}  // namespace lockstep::device
