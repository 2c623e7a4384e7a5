#pragma once

#include <memory>

#include "comm/host/world.h"
#include "lockstep/init.h"

namespace lockstep::inline v0_2::detail {

/// Installs a terminate handler that records uncaught errors.
void record_uncaught_errors();

/// From now on also records errors in this world, as errors of the rank.
void record_errors_in(const std::shared_ptr<host::World>& world, int rank);

}  // namespace lockstep::detail
