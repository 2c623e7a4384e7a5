#pragma once

#include <string>
#include <vector>

namespace lockstep::inline v0_2::kernels {

/// The instruction sets that kernels were built for and this CPU has, best first; kernels use the
/// first.
std::vector<std::string> cpu_targets();

}  // namespace lockstep::kernels
