#include "comm/flight/deadlock.h"

#include <algorithm>
#include <utility>

#include "core/text.h"

// Note [How ranks find a deadlock]
// A rank publishes the operation that it waits in and, for each group, what it has begun. Every
// rank can therefore see which ranks a waiting rank waits for: the members that have not begun its
// operation. A waiting rank begins no operation, because only one thread at a time uses its groups,
// and every collective needs all its members. A cycle of waiting ranks therefore never ends.
// A receive from any source needs one of the members. It never ends if the waits of all members
// never end, and no message of theirs waits to be taken.
// A rank may end one wait and begin the next one while another rank reads. Each wait therefore has
// its own turn, and a cycle is valid only if no turn in it has changed while its edges were read. A
// rank that computes or polls publishes no wait, so it is never in a cycle.
// Waits come from the memory of a host world (host/host_rank_context.cpp), or from flight records
// (diagnosis.cpp). RankContext::check_deadlock() searches after a second, and
// raises what two searches have found.

namespace lockstep::inline v0_2::detail {
namespace {

using Waits = std::map<int, PendingWait>;

/// The wait of the rank, of the ranks that it waits for, and so on.
Waits connected_waits(const WaitOf& wait_of, int rank) {
  Waits waits;
  std::vector<int> left{rank};
  while (!left.empty()) {
    const int next = left.back();
    left.pop_back();
    if (waits.contains(next)) continue;
    auto wait = wait_of(next);
    if (!wait) continue;
    left.insert(left.end(), wait->missing.begin(), wait->missing.end());
    waits.emplace(next, *std::move(wait));
  }
  return waits;
}

}  // namespace

void keep_endless(Waits& waits) {
  const auto is_stuck = [&](int rank) { return waits.contains(rank); };
  const auto can_end = [&](const auto& one) {
    const auto& wait = one.second;
    return wait.for_any ? !std::ranges::all_of(wait.missing, is_stuck)
                        : std::ranges::none_of(wait.missing, is_stuck);
  };
  while (std::erase_if(waits, can_end) > 0) {
  }
}

std::vector<PendingWait> endless_cycle(Waits waits, int rank) {
  keep_endless(waits);
  std::vector<PendingWait> members;
  if (!waits.contains(rank)) return members;
  for (auto& [waiter, wait] : waits) {
    if (wait.for_any) continue;
    wait.missing = {
        *std::ranges::find_if(wait.missing, [&](int one) { return waits.contains(one); })};
  }
  std::vector<int> walk;
  while (std::ranges::find(walk, rank) == walk.end()) {
    walk.push_back(rank);
    rank = waits.at(rank).missing.front();
  }
  members.push_back(waits.at(*std::min_element(std::ranges::find(walk, rank), walk.end())));
  for (std::size_t i = 0; i < members.size(); ++i) {
    for (const int one : std::vector(members[i].missing)) {
      const auto known = std::ranges::find(members, one, &PendingWait::rank);
      if (known == members.end()) members.push_back(waits.at(one));
    }
  }
  return members;
}

std::string Deadlock::text() const {
  std::string text = "deadlock: ";
  for (const auto& wait : waits) {
    text += concat(wait.rank == waits.front().rank ? "" : ", ", "rank ", wait.rank, " waits in ",
                   wait.operation, " for ", rank_list(wait.missing));
  }
  return text +
         "; let one of these ranks begin what another one waits for before it waits itself, and "
         "issue the operations of groups that share ranks in the same order on all of them";
}

std::optional<Deadlock> find_deadlock(const WaitOf& wait_of, int rank) {
  auto waits = endless_cycle(connected_waits(wait_of, rank), rank);
  if (waits.empty()) return std::nullopt;
  const auto is_unchanged = [&](const PendingWait& wait) {
    const auto now = wait_of(wait.rank);
    return now && now->turn == wait.turn;
  };
  if (!std::ranges::all_of(waits, is_unchanged)) return std::nullopt;
  return Deadlock{.waits = std::move(waits)};
}

}  // namespace lockstep::detail
