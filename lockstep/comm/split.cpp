#include "lockstep/comm/split.h"

#include <algorithm>

namespace lockstep::detail {

std::vector<SplitChoice> exchange_choices(Communicator& group, const SplitChoice& mine) {
  constexpr std::size_t words = sizeof(SplitChoice) / sizeof(std::int64_t);
  static_assert(sizeof(SplitChoice) == words * sizeof(std::int64_t));
  std::vector<SplitChoice> choices(static_cast<std::size_t>(group.size()));
  group.all_gather(&mine, choices.data(), words, DType::i64).wait();
  return choices;
}

std::vector<int> ranks_of_color(std::int64_t color, std::span<const SplitChoice> choices) {
  std::vector<int> ranks;
  if (color < 0) return ranks;
  for (std::size_t rank = 0; rank < choices.size(); ++rank) {
    if (choices[rank].color == color) ranks.push_back(static_cast<int>(rank));
  }
  std::ranges::stable_sort(ranks, {},
                           [&](int rank) { return choices[static_cast<std::size_t>(rank)].key; });
  return ranks;
}

}  // namespace lockstep::detail
