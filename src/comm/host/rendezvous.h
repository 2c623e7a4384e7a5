#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "comm/host/peer_watch.h"
#include "comm/host/world.h"

namespace lockstep::inline v0_2::host {

/// Creates or joins the world of ranks on this host that another launcher than `lockstep run` has
/// started. Rank 0 creates the world's memory, and the other ranks of the same job get its
/// descriptor from rank 0. Every rank calls it. Only processes of the same user can join. Note [How
/// ranks of another launcher join a world] is in rendezvous.cpp.
/// Throws: TimeoutError naming the ranks that did not join. CommError if two processes claim the
/// same rank or the world sizes differ, if a joined rank or the launcher ends before all ranks have
/// joined, and if another process has bound the socket's name.
std::shared_ptr<World> rendezvous(const std::string& job, int rank, int size,
                                  std::chrono::milliseconds timeout,
                                  const LauncherWatch& launcher = {});

/// A job name for the processes that one launcher has started on this host: it names their nearest
/// ancestor that was started without the variable, which the launcher sets for its ranks.
std::string job_by_ancestor(const std::string& variable);

}  // namespace lockstep::host
