#pragma once

#include <memory>
#include <vector>

#include "tests/random_programs/program.h"
#include "tests/random_programs/rank.h"

namespace lockstep::random_programs {

/// The backward of the sum of all ranks' losses, which a collective joins in one graph.
void run_in_one_graph(const Backward& op, const std::vector<std::unique_ptr<Rank>>& ranks);

}  // namespace lockstep::random_programs
