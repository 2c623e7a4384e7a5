#pragma once

#include <c10/core/ScalarType.h>

#include <string_view>

#include "lockstep/types.h"

namespace lockstep::inline v0_2::detail {

/// The dtype of collectives for a tensor's dtype. operation: the prefix of the error.
/// Throws: InvalidArgument when collectives do not support it.
DType dtype_of(at::ScalarType type, std::string_view operation);

}  // namespace lockstep::detail
