#include "comm/reduction.h"

#include "kernels/reduce.h"
#include "kernels/reduce_rounded.h"

namespace lockstep::inline v0_2::detail {

void reduce(const Operation& operation, std::span<const std::byte* const> inputs,
            std::span<std::byte* const> outputs, std::size_t count) {
  if (operation.wire) {
    kernels::reduce_rounded(*operation.wire, operation.reduce, inputs, outputs, count);
  } else {
    kernels::reduce(operation.dtype, operation.reduce, inputs, outputs, count);
  }
}

}  // namespace lockstep::detail
