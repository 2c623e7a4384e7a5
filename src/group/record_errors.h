#pragma once

#include <memory>

#include "comm/host/world.h"
#include "lockstep/init.h"

namespace lockstep::inline v0_2::detail {

/// Records uncaught errors from here on.
void record_uncaught_errors();

/// Records errors in this world, too, from here on, as those of the rank.
void record_errors_in(const std::shared_ptr<host::World>& world, int rank);

}  // namespace lockstep::detail
