#pragma once

#include <functional>

#include "lockstep/init.h"

namespace lockstep {

/// Runs fn in n threads of this process, each a rank of one world; returns when all have returned.
/// Each thread gets its share of the cores as compute threads, unless OMP_NUM_THREADS says
/// otherwise. Throws: what the first failing rank threw.
void spawn(int n, const std::function<void(Group)>& fn, const InitOptions& options = {});

namespace detail {

/// Whether the calling thread is a rank of spawn().
bool inside_spawn();

}  // namespace detail

}  // namespace lockstep
