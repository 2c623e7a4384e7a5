#pragma once

#include <c10/core/Stream.h>

namespace lockstep::inline v0_2::device {

/// Whether CUDA records the stream's work for a graph instead of running it. False for devices
/// other than CUDA.
bool is_capturing(const c10::Stream& stream);

}  // namespace lockstep::device
