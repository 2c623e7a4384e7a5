#include "tests/random_programs/search.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "tests/random_programs/oracle.h"

namespace lockstep::random_programs {
namespace {

/// How many programs one world runs at most: a failure repeats those that came after it.
constexpr std::size_t programs_of_a_world = 50;

/// The i-th program of each rank's logs.
std::vector<Log> logs_of(const std::vector<std::vector<Log>>& ranks, std::size_t i) {
  std::vector<Log> logs;
  for (const auto& rank : ranks) logs.push_back(i < rank.size() ? rank[i] : Log());
  return logs;
}

/// Whether every rank's world was still there after the i-th program.
bool goes_on(const std::vector<std::vector<Log>>& ranks, std::size_t i) {
  return std::ranges::all_of(ranks, [i](const auto& rank) { return i + 1 < rank.size(); });
}

}  // namespace

std::size_t run_all(const std::vector<Source>& sources, const std::vector<Category>& without,
                    const Ranks& ranks, std::size_t most_failures,
                    const std::function<void(const Failure&)>& tell) {
  std::map<int, std::vector<Source>> by_ranks;
  for (const auto& source : sources) {
    by_ranks[program_of(source, without).ranks].push_back(source);
  }
  std::size_t failures = 0;
  std::size_t compared = 0;
  for (const auto& [count, all] : by_ranks) {
    for (std::size_t next = 0; next < all.size() && failures < most_failures;) {
      const auto last = std::min(next + programs_of_a_world, all.size());
      const std::vector<Source> batch(all.begin() + static_cast<std::ptrdiff_t>(next),
                                      all.begin() + static_cast<std::ptrdiff_t>(last));
      const auto logs = run_in_one_world(batch, without, ranks);
      for (std::size_t i = 0; i < batch.size(); ++i) {
        ++next;
        ++compared;
        const auto found = difference(expect(program_of(batch[i], without)), logs_of(logs, i));
        if (found) {
          ++failures;
          tell({.source = batch[i], .what = *found, .number = compared});
        }
        // Results after a failure in the same world are meaningless.
        if (found || !goes_on(logs, i)) break;
      }
    }
  }
  return failures;
}

Source shrink(const Source& failing, const std::vector<Category>& without,
              const std::function<bool(const Source&)>& fails) {
  auto smallest = failing;
  if (smallest.kept.empty()) {
    smallest.kept.resize(program_of(failing, without).operations.size());
    std::iota(smallest.kept.begin(), smallest.kept.end(), 0);
  }
  for (bool shrunk = true; shrunk;) {
    shrunk = false;
    for (std::size_t i = smallest.kept.size(); i-- > 0 && smallest.kept.size() > 1;) {
      auto smaller = smallest;
      smaller.kept.erase(smaller.kept.begin() + static_cast<std::ptrdiff_t>(i));
      if (!is_legal(program_of(smaller, without), without) || !fails(smaller)) continue;
      smallest = std::move(smaller);
      shrunk = true;
    }
  }
  return smallest;
}

}  // namespace lockstep::random_programs
