#pragma once

#include <string>

#include "tests/simulation/attempt.h"

namespace lockstep::testing {

/// Checks the promises of Lockstep for an attempt. Without a failure, every rank succeeds with
/// correct results. Otherwise every rank gets an error in time. Its first cause is the same on all
/// ranks and names a rank at fault. Returns the first violation; empty if there is none.
std::string broken_promise(Attempt& attempt);

}  // namespace lockstep::testing
