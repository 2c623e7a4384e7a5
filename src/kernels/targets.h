#pragma once

#include <string>
#include <vector>

namespace lockstep::inline v0_2::kernels {

/// The instruction sets for which kernels were built and which this CPU supports, best first.
/// Kernels use the first.
std::vector<std::string> cpu_targets();

}  // namespace lockstep::kernels
