#pragma once

#include "comm/host/host.h"
#include "lockstep/init.h"

namespace lockstep::inline v0_2::detail {

/// How a rank of so many compute threads waits, from the caller's options and the environment.
host::Options rank_options(const InitOptions& options, int threads_per_rank);

/// Cores that this process may use.
int usable_cores();

}  // namespace lockstep::detail
