#pragma once

#include <filesystem>
#include <memory>

#include "comm/communicator.h"
#include "tests/random_hangs/hang.h"

namespace lockstep::testing {

/// Runs one rank until it hangs. Before that, it writes the operation that it will wait in to
/// folder/RANK: its name and the members of its group, or "none".
[[noreturn]] void run_rank(const Hang& hang, const std::shared_ptr<Communicator>& world,
                           const std::filesystem::path& folder);

}  // namespace lockstep::testing
