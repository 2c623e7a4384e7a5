#pragma once

#include <string>

#include "tests/simulation/attempt.h"

namespace lockstep::testing {

/// Checks what Lockstep promises for an attempt: success and correct results without a failure,
/// otherwise an error on every rank in time, with the same first cause, which names a rank at
/// fault. Returns the first violation; empty if there is none.
std::string broken_promise(Attempt& attempt);

}  // namespace lockstep::testing
