#pragma once

#include <filesystem>

#include "lockstep/group.h"
#include "tests/random_programs/outcome.h"
#include "tests/random_programs/program.h"

namespace lockstep::random_programs {

/// Carries the program out as one rank, with Lockstep, up to its end or the first error that it
/// does not ask for. The folder is for checkpoints, the same on all ranks.
/// Ranks: all of the world.
Log interpret(const Program& program, const Group& world, const std::filesystem::path& folder);

}  // namespace lockstep::random_programs
