#pragma once

#include <cstdint>
#include <vector>

#include "tests/random_programs/program.h"
#include "tests/random_programs/rules.h"

namespace lockstep::random_programs {

/// The program of a seed: the same everywhere, and of no category that is left out.
Program generate(std::uint64_t seed, const std::vector<Category>& without);

}  // namespace lockstep::random_programs
