#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/host/world.h"

namespace lockstep::inline v0_2::host {

/// Why some rank cannot join any more; nullopt while all can. The launcher or the rank has ended.
using JoinCheck = std::function<std::optional<std::string>()>;

/// Creates or joins the world of ranks on this host that another launcher than `lockstep run` has
/// started. Rank 0 creates the world's memory, and the other ranks of the same job get its
/// descriptor from rank 0. Every rank calls it. Only processes of the same user can join. Note [How
/// ranks of another launcher join a world] is in rendezvous.cpp.
/// Throws: TimeoutError naming the ranks that did not join. CommError if two processes claim the
/// same rank or the world sizes differ, if a joined rank ends or the check fails before all ranks
/// have joined, and if another process has bound the socket's name.
std::shared_ptr<World> rendezvous(
    const std::string& job, int rank, int size, std::chrono::milliseconds timeout,
    const JoinCheck& check = [] { return std::nullopt; });

/// A job name for the processes that one launcher has started on this host: it names their nearest
/// ancestor that was started without the variable, which the launcher sets for its ranks.
std::string job_by_ancestor(const std::string& variable);

}  // namespace lockstep::host
