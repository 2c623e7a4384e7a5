#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "core/text.h"

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

inline constexpr std::array<std::string_view, 11> fault_names{
    "sleeps",      "spins",    "stops",         "dies",          "skips",     "other_group",
    "never_waits", "receives", "silent_sender", "skips_wrapper", "in_transit"};

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

  static Hang make(std::uint64_t seed, std::uint64_t index) {
    std::mt19937_64 random(seed * 1'000'003 + index);
    const auto below = [&](std::size_t n) { return static_cast<int>(random() % n); };
    constexpr int sizes[] = {2, 3, 4, 7};
    constexpr Collective collectives[] = {Collective::all_reduce, Collective::broadcast,
                                          Collective::all_gather, Collective::reduce_scatter,
                                          Collective::barrier};
    Hang hang{.seed = seed, .index = index};
    // Starting MPI takes most of the time.
    hang.hosts = index % 5 == 4 ? 2 : 1;
    hang.size = sizes[below(4)];
    hang.fault = static_cast<Fault>(below(fault_names.size()));
    hang.culprit = below(static_cast<std::size_t>(hang.size));
    hang.last = collectives[below(std::size(collectives))];
    hang.before = below(12);
    if (hang.hosts == 2) {
      // A progress thread completes the operation, and MPI ends the job of a rank that dies.
      if (hang.fault == Fault::never_waits || hang.fault == Fault::dies) hang.fault = Fault::sleeps;
    }
    const bool by_messages = hang.fault == Fault::receives || hang.fault == Fault::silent_sender;
    std::vector<int> others;
    for (int rank = 0; rank < hang.size; ++rank) {
      if (rank != hang.culprit) others.push_back(rank);
    }
    std::ranges::shuffle(others, random);
    hang.partner = others.front();
    // A group of the culprit and at least one other rank; of skips, one is outside, or the
    // operation that the culprit goes on with is the same.
    const auto most = others.size();
    const auto chosen = below(2) == 0 ? most : 1 + random() % most;
    hang.group.assign(others.begin(), others.begin() + static_cast<std::ptrdiff_t>(chosen));
    hang.group.push_back(hang.culprit);
    std::ranges::sort(hang.group);
    hang.nested = static_cast<int>(hang.group.size()) < hang.size && below(2) == 0;
    if (by_messages) {
      const auto length = 1 + random() % most;
      hang.circle.assign(others.begin(), others.begin() + static_cast<std::ptrdiff_t>(length));
      hang.circle.push_back(hang.culprit);
      hang.nested = below(2) == 0;
    }
    return hang;
  }

  bool is_member(int rank) const { return std::ranges::find(group, rank) != group.end(); }
  /// "hang 17 of seed 1: stops, rank 2 of 4, all_reduce of ranks 1, 2".
  std::string text() const {
    return detail::concat(
        "hang ", index, " of seed ", seed, ": ", fault_names[static_cast<std::size_t>(fault)],
        ", rank ", culprit, " of ", size, hosts == 2 ? " on two simulated hosts" : "", ", ",
        lockstep::name(last), " of ", detail::rank_list(group), nested ? ", nested" : "",
        circle.empty() ? "" : detail::concat(", messages of ", detail::rank_list(circle)));
  }
};

/// Runs one rank until it hangs. Before that, it writes the operation that it will wait in to
/// folder/RANK: its name and the members of its group, or "none".
[[noreturn]] void run_rank(const Hang& hang, const std::shared_ptr<Communicator>& world,
                           const std::filesystem::path& folder);

}  // namespace lockstep::testing
