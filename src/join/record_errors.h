#pragma once

#include <exception>
#include <memory>

#include "comm/host/world/world.h"
#include "core/failure.h"

namespace lockstep::inline v0_2::detail {

/// As record_error() of lockstep/init.h.
void record_error_of_rank(const std::exception& error) noexcept;

/// Installs a terminate handler that records uncaught errors.
void record_uncaught_errors();

/// From now on records errors in this world, as errors of the rank, until the process ends.
void record_errors_in(const std::shared_ptr<host::World>& world, int rank);

/// Records an error in the world of this process: the one that it has joined, or else the one that
/// `lockstep run` has made for it.
void record_in_world(const ErrorRecord& record) noexcept;

/// The world of `lockstep run`, of the ranks of this host; null without one. Records errors there.
/// Throws: as World::attach().
std::shared_ptr<host::World> launched_world();

}  // namespace lockstep::detail
