#pragma once

namespace lockstep::inline v0_2::detail {

/// Whether the calling thread is a rank of spawn().
bool inside_spawn();

/// Flushes or keeps denormals in the calling thread and in its OpenMP threads, which may already
/// exist.
void flush_denormals_in_compute_threads(bool flush);

}  // namespace lockstep::detail
