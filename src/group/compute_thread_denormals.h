#pragma once

#include <optional>

#include "lockstep/denormals.h"

namespace lockstep::inline v0_2::detail {

/// Whether ranks flush denormals: the caller's option, else LOCKSTEP_FLUSH_DENORMALS.
bool flush_denormals_setting(const std::optional<bool>& option);

/// Flushes denormals, or keeps them, in the calling thread and in OpenMP's threads that compute for
/// it, which may have been created before.
void flush_denormals_in_compute_threads(bool flush);

}  // namespace lockstep::detail
