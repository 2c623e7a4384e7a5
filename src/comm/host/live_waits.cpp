#include <algorithm>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "comm/announcement.h"
#include "comm/host/host_rank_context.h"
#include "comm/operation.h"
#include "core/text.h"

// Note [What a host world publishes about waits]
// A rank that has waited for a second publishes its operation and group in the world's memory.
// Every member of a group publishes the number of collectives that it has begun. A sender publishes
// the number of its last message. A receiver publishes how many messages it has taken and, before
// its wait, from how many receives each sender may expect that they take its message.
// A waiting rank may take messages, which changes what it waits for. It ends its wait before, and
// publishes a new one.

namespace lockstep::inline v0_2::host {
namespace {

using detail::concat;
using detail::PendingWait;

/// The published wait of a rank of the arena, with world ranks.
std::optional<PendingWait> published_wait(const Arena& arena, int rank,
                                          std::span<const int> world_ranks) {
  const auto name = [&](int one) { return world_ranks[static_cast<std::size_t>(one)]; };
  const auto wait = read_wait(arena.rank(rank).wait);
  if (!wait) return std::nullopt;
  const auto& waited = wait->waited;
  PendingWait found{.rank = name(rank), .turn = wait->turn, .operation = {}, .missing = {}};
  found.for_any = waited.collective == Collective::recv && waited.peer == any_source;
  const Block block(arena.at(waited.group), waited.members);
  std::vector<int> group;
  for (int i = 0; i < waited.members; ++i) {
    const int next = member_rank(block, i);
    const bool is_rank = next >= 0 && next < arena.size();
    group.push_back(is_rank ? name(next) : -1);
    const bool is_partner = waited.peer < 0 || i == waited.peer;
    const bool is_pending = is_rank && !has_begun(block, waited, i);
    // A message of any rank ends the wait. While the rank waits, it sends itself none.
    if (found.for_any && !is_pending) return std::nullopt;
    const bool is_self = found.for_any && next == rank && waited.members > 1;
    if (is_partner && is_pending && !is_self) found.missing.push_back(name(next));
  }
  const Operation operation{
      .collective = waited.collective, .peer = waited.peer, .sequence = waited.sequence};
  const auto of_group =
      waited.number == 0 ? " of the world" : detail::of_group(waited.number, group);
  found.operation = concat(operation.label(), of_group, in_parentheses(waited.source));
  return found;
}

}  // namespace

detail::WaitOf live_waits(const Arena& arena, std::vector<int> world_ranks) {
  if (world_ranks.empty()) {
    world_ranks.resize(static_cast<std::size_t>(arena.size()));
    std::iota(world_ranks.begin(), world_ranks.end(), 0);
  }
  return [&arena, names = std::move(world_ranks)](int world_rank) {
    const auto found = std::ranges::find(names, world_rank);
    return published_wait(arena, static_cast<int>(found - names.begin()), names);
  };
}

}  // namespace lockstep::host
