#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "comm/control/joining.h"
#include "core/environment.h"

namespace lockstep::inline v0_2 {
struct Placement;
}

namespace lockstep::inline v0_2::messages {

/// The algorithm of an all_reduce over messages. docs/algorithms.md has the steps and bytes of
/// both.
enum class Algorithm {
  automatic,
  direct,  ///< each rank receives all inputs of its slice and reduces them: fewest steps
  ring     ///< partial results pass around a ring: each rank has two partners for any number of
           ///< ranks, but the sums of different slices begin at different ranks
};

std::string_view name(Algorithm algorithm);

/// The algorithm with this name: "auto", "direct" or "ring".
/// Throws: InvalidArgument listing the valid names, which begins with `what`.
Algorithm parse_algorithm(std::string_view text, std::string_view what = "algorithm:");

/// The faster algorithm for an all_reduce of `bytes` between ranks of this placement, by the cost
/// model of comm/cost/cost.h; `automatic` selects it. A pure function: all ranks get the same
/// result.
Algorithm cheapest(const Placement& placement, std::size_t bytes);

/// Options of a world whose ranks exchange messages.
struct Options {
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  ///< longest wait of one operation
  int threads_per_rank = 1;  ///< compute threads of each rank; a waiting rank spins if all threads
                             ///< of the host have a core
  int cores = 0;             ///< cores that a host's ranks share; 0 for all of the machine
  Algorithm algorithm = Algorithm::automatic;          ///< the same on all ranks
  ProgressMode progress = ProgressMode::automatic;     ///< how operations advance between calls
  TransportKind transport = TransportKind::automatic;  ///< the same on all ranks; not with MPI
  std::string host = {};  ///< host id of this rank; empty: determined by this_host()
  /// Part of the host id: ranks of two launchers on one machine share no memory.
  std::string launcher = {};
  /// The network interface of the connections between hosts; empty: the system's routes select it.
  std::string interface = {};
  std::chrono::milliseconds heartbeat =
      control::default_heartbeat;  ///< longest time without a heartbeat from a host
  bool records = true;             ///< keep a flight record; false for the part of another world
  /// Number of ranks according to the launcher's variables, to compare MPI's with; 0 if unknown.
  int expected_size = 0;
};

/// The values that ranks exchange when they join the world.
struct JoinRecord {
  std::uint64_t host;  ///< digest of the host id
  std::int64_t algorithm;
  std::int64_t flushes_denormals;  ///< 0 or 1
  std::array<char, 32> version;
};

/// The record of the calling rank.
JoinRecord join_record_of(const std::string& host, Algorithm algorithm);

/// Checks that all ranks have the same settings. backend: its name, for error texts.
/// Throws: CommError if ranks run different versions of Lockstep. InvalidArgument if they use
/// different algorithms, or if some flush denormals and others keep them. The message names the
/// first rank that differs from rank 0.
void expect_alike(std::string_view backend, std::span<const JoinRecord> by_rank);

}  // namespace lockstep::messages
