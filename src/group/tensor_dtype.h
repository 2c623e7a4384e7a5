#pragma once

#include <c10/core/ScalarType.h>

#include <string_view>

#include "lockstep/types.h"

namespace lockstep::inline v0_2::detail {

/// How collectives carry a tensor's elements. Throws: InvalidArgument where they do not.
DType dtype_of(at::ScalarType type, std::string_view where);

}  // namespace lockstep::detail
