#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace lockstep::testing {

/// How one rank makes the others wait, or why all of them do.
enum class Fault {
  sleeps,         ///< the rank sleeps before the last operation
  spins,          ///< it computes without end
  stops,          ///< it is stopped by SIGSTOP
  dies,           ///< it is killed by SIGKILL; only without a watch of processes
  skips,          ///< it skips the last operation and issues one of another group
  other_group,    ///< it issues the same operation in a second group of the same members
  never_waits,    ///< it issues the operation, and computes instead of waiting for it
  receives,       ///< ranks receive from one another in a circle, before any of them sends
  silent_sender,  ///< another rank receives from it, and it sends nothing
  skips_wrapper,  ///< of several wrappers, it skips the last, and begins the next step
  in_transit      ///< no fault: all ranks are in an operation that takes long
};

/// One world that hangs. All its ranks derive it from seed and index.
struct Hang {
  std::uint64_t seed = 0;
  std::uint64_t index = 0;
  int size = 2;
  int hosts = 1;  ///< 2: simulated, in a hierarchical world over MPI
  Fault fault = Fault::sleeps;
  int culprit = 0;
  std::vector<int> circle = {};  ///< of Fault::receives: each rank receives from the next
  int partner = 0;               ///< of Fault::silent_sender: the rank that receives
  /// Members of the group of the last operation, ascending; all ranks for the world.
  std::vector<int> group = {};
  bool nested = false;  ///< ranks outside the group wait for its members in the world
  Collective last = Collective::all_reduce;
  int before = 0;  ///< operations that all ranks complete before

  static Hang make(std::uint64_t seed, std::uint64_t index);

  bool is_member(int rank) const;
  /// "hang 17 of seed 1: stops, rank 2 of 4, all_reduce of ranks 1, 2".
  std::string text() const;
};

/// Runs one rank until it hangs. Before that, it writes the operation that it will wait in to
/// folder/RANK: its name and the members of its group, or "none".
[[noreturn]] void run_rank(const Hang& hang, const std::shared_ptr<Communicator>& world,
                           const std::filesystem::path& folder);

}  // namespace lockstep::testing
