#include "comm/host/deadlock.h"

#include <algorithm>
#include <map>
#include <utility>

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
  Search(const Arena& arena, int rank) : arena_(arena) {
    read(rank);
    remove_waits_that_can_end();
  }

  /// The ranks of a cycle that the rank is in, or waits for; empty if its wait can end. With ranks
  /// that wait for one of several ranks, it is more than a cycle.
  std::vector<Deadlock::Member> result(int rank) const {
    if (!waits_.contains(rank)) return {};
    std::vector<int> walk;
    while (std::ranges::find(walk, rank) == walk.end()) {
      walk.push_back(rank);
      rank = waits_.at(rank).targets.front();
    }
    const int lowest = *std::min_element(std::ranges::find(walk, rank), walk.end());
    std::vector<Deadlock::Member> members{waits_.at(lowest)};
    for (std::size_t i = 0; i < members.size(); ++i) {
      for (const int target : std::vector(members[i].targets)) {
        const auto known = std::ranges::find(members, target, &Deadlock::Member::rank);
        if (known == members.end()) members.push_back(waits_.at(target));
      }
    }
    return members;
  }

 private:
  static bool is_for_any(const Deadlock::Member& member) {
    return member.waited.collective == Collective::recv && member.waited.peer == any_source;
  }

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
      if (is_for_any(member) && !is_pending) return;
      const bool is_self = is_for_any(member) && next == rank && waited.members > 1;
      if (is_target && is_pending && !is_self) member.targets.push_back(next);
    }
    const auto targets = waits_.emplace(rank, std::move(member)).first->second.targets;
    for (const int target : targets) {
      if (!waits_.contains(target)) read(target);
    }
  }

  /// Afterwards each wait is for a rank whose wait cannot end, and targets is the first such rank.
  /// A wait for any of several ranks is for ranks whose waits all cannot end.
  void remove_waits_that_can_end() {
    const auto is_stuck = [&](int rank) { return waits_.contains(rank); };
    const auto can_end = [&](const auto& wait) {
      const auto& targets = wait.second.targets;
      return is_for_any(wait.second) ? !std::ranges::all_of(targets, is_stuck)
                                     : std::ranges::none_of(targets, is_stuck);
    };
    while (std::erase_if(waits_, can_end) > 0) {
    }
    for (auto& [rank, member] : waits_) {
      if (!is_for_any(member)) member.targets = {*std::ranges::find_if(member.targets, is_stuck)};
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
  std::string text = "deadlock: ";
  for (const auto& [rank, turn, waited, group, targets] : members_) {
    const Operation operation{
        .collective = waited.collective, .peer = waited.peer, .sequence = waited.sequence};
    std::vector<int> names, awaited;
    for (const int member : group) names.push_back(member < 0 ? member : world_rank(member));
    for (const int target : targets) awaited.push_back(world_rank(target));
    const auto source = to_text(waited.source);
    text += detail::concat(rank == members_.front().rank ? "" : ", ", "rank ", world_rank(rank),
                           " waits in ", operation.label(), " of ", group_text(waited, names),
                           source.empty() ? "" : detail::concat(" (", source, ")"), " for ",
                           detail::rank_list(awaited));
  }
  return text +
         "; issue the operations of groups that share ranks in the same order on all of them";
}

std::optional<Deadlock> find_deadlock(const Arena& arena, int rank) {
  auto members = Search(arena, rank).result(rank);
  if (members.empty()) return std::nullopt;
  const auto unchanged = [&](const Deadlock::Member& member) {
    return is_in_turn(arena.rank(member.rank).wait, member.turn);
  };
  if (!std::ranges::all_of(members, unchanged)) return std::nullopt;
  return Deadlock(std::move(members));
}

}  // namespace lockstep::host
