#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "lockstep/comm/host/world.h"

namespace lockstep::host {

/// The world of ranks that no `lockstep run` handed it to: rank 0 makes it, and the others, who
/// name the same job, get its descriptor from rank 0. Every rank calls it; only processes of the
/// same user are let in. Note [How ranks of a foreign launcher meet] is in rendezvous.cpp. Throws:
/// TimeoutError naming the ranks that did not come; CommError when two say that they are the same
/// rank, when numbers of ranks differ, when one that came has ended before all were here, or when
/// somebody else holds the meeting place.
std::shared_ptr<World> meet(const std::string& job, int rank, int size,
                            std::chrono::milliseconds timeout);

/// What tells the processes that one launcher started on this host from those of any other: the
/// nearest ancestor whose own environment has not the variable, which it sets for its ranks.
std::string job_by_ancestor(const std::string& variable);

}  // namespace lockstep::host
