#pragma once

#include <span>

namespace lockstep::bench {

/// Reads all values once, as fast as memory gives them: what selections and exchanges are measured
/// against. The result is to be used, or nothing is read.
float read_pass(std::span<const float> values);

}  // namespace lockstep::bench
