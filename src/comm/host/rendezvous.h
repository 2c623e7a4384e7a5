#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "comm/host/peer_watch.h"
#include "comm/host/world.h"

namespace lockstep::inline v0_2::host {

/// The world of ranks that `lockstep run` did not start. Rank 0 makes it, and the others, which
/// name the same job, get its descriptor from rank 0. Every rank calls it; only processes of the
/// same user are let in. Note [How ranks of a foreign launcher meet] is in rendezvous.cpp.
/// Throws: TimeoutError naming the ranks that did not come; CommError when two processes claim the
/// same rank, or their world sizes differ; CommError when a rank that came or the launcher has
/// ended before all were here; CommError naming another process that holds the socket's name.
std::shared_ptr<World> meet(const std::string& job, int rank, int size,
                            std::chrono::milliseconds timeout, const LauncherWatch& launcher = {});

/// Identifies the processes that one launcher started on this host. It is their nearest ancestor
/// whose own environment lacks the variable, which the launcher sets for its ranks.
std::string job_by_ancestor(const std::string& variable);

}  // namespace lockstep::host
