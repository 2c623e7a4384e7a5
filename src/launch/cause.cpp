#include "launch/cause.h"

#include <algorithm>
#include <tuple>

namespace lockstep::inline v0_2::launch {
namespace {

/// Whether the rank's error is another rank's that it repeats, as all_or_none() raises it on all
/// ranks.
bool repeats(std::span<const Account> ranks, std::size_t rank) {
  const auto& error = *ranks[rank].error;
  const auto first = static_cast<std::size_t>(error.rank);
  return error.repeats && error.rank >= 0 && first != rank && first < ranks.size() &&
         ranks[first].error;
}

/// How likely the rank has the cause.
int weight(std::span<const Account> ranks, std::size_t rank) {
  const auto& account = ranks[rank];
  const bool own = account.error && !account.error->of_world() && !account.raised_failure;
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
