#include "comm/host/deadlock.h"

#include <algorithm>
#include <utility>

#include "core/text.h"

// Note [How ranks find a deadlock]
// A rank that has waited for a second publishes its operation and group in the world's memory.
// Every member of a group publishes the number of collectives that it has begun. Sender and
// receiver publish the numbers of their messages. Every rank can therefore see which ranks a
// waiting rank waits for: the members that have not begun its operation. A waiting rank begins no
// operation, because only one thread at a time uses its groups, and every operation needs all its
// members. A cycle of waiting ranks therefore never ends.
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

class Search {
 public:
  explicit Search(const Arena& arena)
      : arena_(arena), visited_(static_cast<std::size_t>(arena.size())) {}

  /// Whether the rank is in a cycle, or waits for a rank in a cycle. path() is then the cycle.
  bool visit(int rank) {
    visited_[static_cast<std::size_t>(rank)] = true;
    const auto wait = read_wait(arena_.rank(rank).wait);
    if (!wait) return false;
    const auto waited = wait->waited;
    Deadlock::Member member{.rank = rank, .turn = wait->turn, .waited = waited, .group = {}};
    const Block block(arena_.at(waited.group), waited.members);
    for (int i = 0; i < waited.members; ++i) {
      member.group.push_back(rank_of(arena_, block, i));
    }
    const auto group = member.group;
    path_.push_back(std::move(member));
    const bool message = waited.peer >= 0;
    for (int i = 0; i < waited.members; ++i) {
      const int next = group[static_cast<std::size_t>(i)];
      if (next < 0 || (message && i != waited.peer) || has_begun(block, waited, i)) continue;
      const auto on_path = std::ranges::find(path_, next, &Deadlock::Member::rank);
      if (on_path != path_.end()) {
        path_.erase(path_.begin(), on_path);
        return true;
      }
      if (!visited_[static_cast<std::size_t>(next)] && visit(next)) return true;
    }
    path_.pop_back();
    return false;
  }

  std::vector<Deadlock::Member>& path() { return path_; }

 private:
  const Arena& arena_;
  std::vector<bool> visited_;
  std::vector<Deadlock::Member> path_;
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

Deadlock::Deadlock(std::vector<Member> cycle) : cycle_(std::move(cycle)) {
  std::ranges::rotate(cycle_, std::ranges::min_element(cycle_, {}, &Member::rank));
}

std::string Deadlock::text(const std::function<int(int)>& world_rank) const {
  std::string text = "deadlock: ";
  for (std::size_t i = 0; i < cycle_.size(); ++i) {
    const auto& [rank, turn, waited, group] = cycle_[i];
    const Operation operation{
        .collective = waited.collective, .peer = waited.peer, .sequence = waited.sequence};
    std::vector<int> names;
    for (const int member : group) names.push_back(member < 0 ? member : world_rank(member));
    const auto source = to_text(waited.source);
    text += detail::concat(i == 0 ? "" : ", ", "rank ", world_rank(rank), " waits in ",
                           operation.label(), " of ", group_text(waited, names),
                           source.empty() ? "" : detail::concat(" (", source, ")"), " for rank ",
                           world_rank(cycle_[(i + 1) % cycle_.size()].rank));
  }
  return text +
         "; issue the operations of groups that share ranks in the same order on all of them";
}

std::optional<Deadlock> find_deadlock(const Arena& arena, int rank) {
  Search search(arena);
  if (!search.visit(rank)) return std::nullopt;
  const auto unchanged = [&](const Deadlock::Member& member) {
    return is_in_turn(arena.rank(member.rank).wait, member.turn);
  };
  if (!std::ranges::all_of(search.path(), unchanged)) return std::nullopt;
  return Deadlock(std::move(search.path()));
}

}  // namespace lockstep::host
