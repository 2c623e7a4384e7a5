#pragma once

#include <optional>

#include "comm/host/host.h"
#include "lockstep/denormals.h"
#include "lockstep/init.h"

namespace lockstep::inline v0_2::detail {

/// Whether init() has joined a world in this process.
bool has_joined();

/// Whether the calling thread is a rank of spawn().
bool inside_spawn();

/// Whether ranks flush denormals: the caller's option, else LOCKSTEP_FLUSH_DENORMALS.
bool flush_denormals_setting(const std::optional<bool>& option);

/// Flushes or keeps denormals in the calling thread and in its OpenMP threads, which may already
/// exist.
void flush_denormals_in_compute_threads(bool flush);

/// The options of a rank in shared memory, from the caller's options and the environment.
host::Options rank_options(const InitOptions& options, int threads_per_rank);

/// Cores that this process may use.
int usable_cores();

}  // namespace lockstep::detail
