#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/host/world/world.h"

namespace lockstep::inline v0_2::host {

/// The message that a rank sends to rank 0 after connecting.
struct Hello {
  static constexpr std::uint64_t expected_magic = 0x6d656574'6b636f6c;  // "lockmeet"
  std::uint64_t magic;
  std::int32_t rank;
  std::int32_t size;
};

/// Settings of a world that a rendezvous makes.
struct NewWorld {
  std::string call = "init";   ///< the function that ranks call, for error texts
  std::size_t heap_bytes = 0;  ///< as World::create(); rank 0's applies
};

/// Why some rank cannot join any more, because the launcher or the rank has ended; nullopt while
/// all can. Empty: there is nothing to check.
using JoinCheck = std::function<std::optional<std::string>()>;

/// Creates or joins the world of ranks on this host that find each other by a job's name. Rank 0
/// creates the world's memory, and the other ranks of the same job get its descriptor from rank 0.
/// Every rank calls it. Only processes of the same user can join. Note [How ranks of another
/// launcher join a world] is in rendezvous.cpp. Throws: TimeoutError naming the ranks that did not
/// join. CommError if two processes claim the same rank or the world sizes differ, if a joined rank
/// ends or the check fails before all ranks have joined, and if another process has bound the
/// socket's name.
std::shared_ptr<World> rendezvous(const std::string& job, int rank, int size,
                                  std::chrono::milliseconds timeout, const JoinCheck& check = {},
                                  const NewWorld& settings = {});

/// A job name for the processes that one launcher has started on this host: it names their nearest
/// ancestor that was started without the variable, which the launcher sets for its ranks.
std::string job_by_ancestor(const std::string& variable);

}  // namespace lockstep::host
