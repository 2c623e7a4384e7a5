#include "comm/host/deadlock.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "comm/diagnosis.h"
#include "core/text.h"

// Note [How ranks find a deadlock]
// A rank that has waited for a second publishes its operation and group in the world's memory.
// Every member of a group publishes the number of collectives that it has begun. A sender publishes
// the number of its last message. A receiver publishes how many messages it has taken and, before
// its wait, from how many receives each sender may expect that they take its message. Every rank
// can therefore see which ranks a waiting rank waits for: the members that have not begun its
// operation. A waiting rank begins no operation, because only one thread at a time uses its groups,
// and every operation needs all its members. A cycle of waiting ranks therefore never ends.
// A receive from any source needs one of the members. Its wait never ends if none of them has sent
// a message that is not taken, and the waits of all of them never end.
// A waiting rank may take messages, which changes what it waits for. It ends its wait before, and
// publishes a new one.
// A rank may end one wait and begin the next one while another rank reads. Each wait therefore has
// its own turn, and a cycle is valid only if no turn in it has changed while its edges were read. A
// rank that computes or polls publishes no wait, so it is never in a cycle.

namespace lockstep::inline v0_2::host {
namespace {

/// The rank of the arena that the member of the group is; -1 for none.
int rank_of(const Arena& arena, const Block& block, int member) {
  const int rank = member_rank(block, member);
  return rank >= 0 && rank < arena.size() ? rank : -1;
}

/// The published waits of a rank, of the ranks that it waits for, and so on.
class Search {
 public:
  Search(const Arena& arena, int rank) : arena_(arena) { read(rank); }

  const std::map<int, Deadlock::Member>& waits() const { return waits_; }

 private:
  void read(int rank) {
    const auto wait = read_wait(arena_.rank(rank).wait);
    if (!wait) return;
    const auto& waited = wait->waited;
    Deadlock::Member member{
        .rank = rank, .turn = wait->turn, .waited = waited, .group = {}, .targets = {}};
    const Block block(arena_.at(waited.group), waited.members);
    for (int i = 0; i < waited.members; ++i) {
      const int next = rank_of(arena_, block, i);
      member.group.push_back(next);
      const bool is_target = waited.peer < 0 || i == waited.peer;
      const bool is_pending = next >= 0 && !has_begun(block, waited, i);
      // A message of any rank ends the wait. While the rank waits, it sends itself none.
      if (member.for_any() && !is_pending) return;
      const bool is_self = member.for_any() && next == rank && waited.members > 1;
      if (is_target && is_pending && !is_self) member.targets.push_back(next);
    }
    const auto targets = waits_.emplace(rank, std::move(member)).first->second.targets;
    for (const int target : targets) {
      if (!waits_.contains(target)) read(target);
    }
  }

  const Arena& arena_;
  std::map<int, Deadlock::Member> waits_;
};

std::string group_text(const Waited& waited, const std::vector<int>& ranks) {
  if (waited.number == 0) return "the world";
  return detail::concat("group ", waited.number, " (", detail::rank_list(ranks), ")");
}

}  // namespace

PublishedWait::PublishedWait(RankState& state, const Waited& waited) : record_(state.wait) {
  begin_wait(record_, waited);
}

PublishedWait::~PublishedWait() { end_wait(record_); }

std::string Deadlock::text(const std::function<int(int)>& world_rank) const {
  std::vector<detail::StuckRank> ranks;
  for (const auto& [rank, turn, waited, group, targets] : members_) {
    const Operation operation{
        .collective = waited.collective, .peer = waited.peer, .sequence = waited.sequence};
    std::vector<int> names, awaited;
    for (const int member : group) names.push_back(member < 0 ? member : world_rank(member));
    for (const int target : targets) awaited.push_back(world_rank(target));
    const auto source = to_text(waited.source);
    ranks.push_back(
        {.rank = world_rank(rank),
         .operation = detail::concat(operation.label(), " of ", group_text(waited, names),
                                     source.empty() ? "" : detail::concat(" (", source, ")")),
         .targets = std::move(awaited)});
  }
  return detail::deadlock_text(ranks);
}

std::optional<Deadlock> find_deadlock(const Arena& arena, int rank) {
  auto members = detail::endless_cycle(Search(arena, rank).waits(), rank);
  if (members.empty()) return std::nullopt;
  const auto unchanged = [&](const Deadlock::Member& member) {
    return is_in_turn(arena.rank(member.rank).wait, member.turn);
  };
  if (!std::ranges::all_of(members, unchanged)) return std::nullopt;
  return Deadlock(std::move(members));
}

}  // namespace lockstep::host
