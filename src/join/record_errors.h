#pragma once

#include <exception>
#include <memory>

#include "comm/host/world/world.h"

namespace lockstep::inline v0_2::detail {

/// As record_error() of lockstep/init.h.
void record_error_of_rank(const std::exception& error) noexcept;

/// Installs a terminate handler that records uncaught errors.
void record_uncaught_errors();

/// From now on also records errors in this world, as errors of the rank.
void record_errors_in(const std::shared_ptr<host::World>& world, int rank);

}  // namespace lockstep::detail
