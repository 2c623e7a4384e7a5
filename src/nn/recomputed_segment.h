#pragma once

#include <any>
#include <functional>

namespace lockstep::inline v0_2::detail {

/// Whether the calling thread runs a segment of recompute() for a backward.
bool is_recomputing();

/// Returns compute()'s result. Within a segment of recompute(), the first forward keeps the result
/// and the second returns it without a call of compute(). For results of collectives.
std::any once_per_forward(const std::function<std::any()>& compute);

}  // namespace lockstep::detail
