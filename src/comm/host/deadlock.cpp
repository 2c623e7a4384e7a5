#include "comm/host/deadlock.h"

#include <algorithm>
#include <bit>
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

constexpr auto relaxed = std::memory_order_relaxed;
constexpr auto acquire = std::memory_order_acquire;

/// The published wait of the rank. Empty if the rank does not wait, or its wait changes meanwhile.
std::optional<Deadlock::Member> wait_of(const Arena& arena, int rank) {
  const auto& record = arena.rank(rank).wait;
  const auto turn = record.turn.load(acquire);
  if (turn % 2 == 0) return std::nullopt;
  Deadlock::Member member{.rank = rank,
                          .turn = turn,
                          .waited = {.group = record.group.load(acquire),
                                     .members = record.members.load(acquire),
                                     .member = record.member.load(acquire),
                                     .number = record.number.load(acquire),
                                     .collective = record.collective.load(acquire),
                                     .peer = record.peer.load(acquire),
                                     .sequence = record.sequence.load(acquire),
                                     .source = std::bit_cast<Source>(record.source.load(acquire))},
                          .group = {}};
  if (record.turn.load(acquire) != turn) return std::nullopt;
  return member;
}

/// The member's rank in the arena; -1 if it has not joined the group, or the group does not exist
/// any more.
int rank_of(const Arena& arena, const Block& block, int member) {
  const int rank = block.membership(member).rank.load(acquire) - 1;
  return rank >= 0 && rank < arena.size() ? rank : -1;
}

/// Whether the member has begun the operation that another member of its group waits for.
bool has_begun(const Block& block, const Waited& waited, int member) {
  switch (waited.collective) {
    case Collective::send:
      return block.mailbox(waited.member, member).recvs_begun.load(acquire) >= waited.sequence;
    case Collective::recv:
      return block.mailbox(member, waited.member).sends_begun.load(acquire) >= waited.sequence;
    default:
      return block.membership(member).issued.load(acquire) > waited.sequence;
  }
}

class Search {
 public:
  explicit Search(const Arena& arena)
      : arena_(arena), visited_(static_cast<std::size_t>(arena.size())) {}

  /// Whether the rank is in a cycle, or waits for a rank in a cycle. path() is then the cycle.
  bool visit(int rank) {
    visited_[static_cast<std::size_t>(rank)] = true;
    auto member = wait_of(arena_, rank);
    if (!member) return false;
    const auto waited = member->waited;
    const Block block(arena_.at(waited.group), waited.members);
    for (int i = 0; i < waited.members; ++i) {
      member->group.push_back(rank_of(arena_, block, i));
    }
    const auto group = member->group;
    path_.push_back(std::move(*member));
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
  record_.group.store(waited.group, relaxed);
  record_.members.store(waited.members, relaxed);
  record_.member.store(waited.member, relaxed);
  record_.number.store(waited.number, relaxed);
  record_.collective.store(waited.collective, relaxed);
  record_.peer.store(waited.peer, relaxed);
  record_.sequence.store(waited.sequence, relaxed);
  record_.source.store(std::bit_cast<std::uint64_t>(waited.source), relaxed);
  record_.turn.fetch_add(1);
}

PublishedWait::~PublishedWait() { record_.turn.fetch_add(1); }

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
    return arena.rank(member.rank).wait.turn.load(acquire) == member.turn;
  };
  if (!std::ranges::all_of(search.path(), unchanged)) return std::nullopt;
  return Deadlock(std::move(search.path()));
}

}  // namespace lockstep::host
