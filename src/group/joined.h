#pragma once

namespace lockstep::inline v0_2::detail {

/// Whether init() has joined a world in this process.
bool has_joined();

/// Whether the calling thread is a rank of spawn().
bool inside_spawn();

}  // namespace lockstep::detail
