#include "launch/cause.h"

#include <algorithm>
#include <tuple>

#include "core/text.h"

namespace lockstep::inline v0_2::launch {
namespace {

/// Whether the rank's error is another rank's that it repeats, as all_or_none() raises it on all
/// ranks: "rank 0: cannot write …".
bool repeats(std::span<const Account> ranks, std::size_t rank) {
  const auto& text = ranks[rank].error->text;
  for (std::size_t other = 0; other < ranks.size(); ++other) {
    if (other == rank || !ranks[other].error) continue;
    const auto& origin = ranks[other].error->text;
    const auto at = text.find(": " + origin);
    if (at == std::string::npos || origin.empty()) continue;
    // The number before it is the rank's in the group that failed.
    const auto word = text.rfind("rank ", at);
    if (word != std::string::npos && word + 5 < at &&
        text.find_first_not_of("0123456789", word + 5) == at) {
      return true;
    }
  }
  return false;
}

/// How likely the rank has the cause.
int weight(std::span<const Account> ranks, std::size_t rank) {
  const auto& account = ranks[rank];
  const bool own = account.error && !account.error->of_world && !account.raised_failure;
  if (own && repeats(ranks, rank)) return 1;
  if (account.failed && (own || (account.crashed && !account.raised_failure))) return 5;
  if (own) return 4;  // it has not ended by itself
  if (!account.failed) return 0;
  if (account.raised_failure || account.error) return 1;
  return account.late ? 2 : 3;
}

}  // namespace

std::optional<int> rank_at_fault(std::span<const Account> ranks, std::optional<int> recorded) {
  constexpr int own_error = 4;  // and above
  if (recorded && weight(ranks, static_cast<std::size_t>(*recorded)) < own_error) return recorded;
  std::optional<int> found;
  std::tuple<int, bool, bool> best{0, false, false};
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const bool is_recorded = recorded == static_cast<int>(rank);
    int likely = weight(ranks, rank);
    // Of ranks with errors of their own the world recorded the one that left first, by chance.
    if (recorded && likely >= own_error) likely = own_error;
    const std::tuple here{likely, ranks[rank].wrote_error, is_recorded};
    if (likely == 0 || here <= best) continue;
    best = here;
    found = static_cast<int>(rank);
  }
  return found;
}

}  // namespace lockstep::launch
