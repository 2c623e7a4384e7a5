#pragma once

#include <vector>

#include "tests/random_programs/outcome.h"
#include "tests/random_programs/program.h"

namespace lockstep::random_programs {

/// The expected outcome on all ranks after each operation. One process holds every rank's models.
/// It applies the operations rank by rank with LibTorch alone and computes means itself.
std::vector<Expected> expect(const Program& program);

}  // namespace lockstep::random_programs
