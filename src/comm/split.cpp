#include "comm/split.h"

#include <algorithm>

namespace lockstep::inline v0_2::detail {

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

NumberedSplit split_numbered(Communicator& group, int color, int key, std::int64_t last_number) {
  const auto choices = exchange_choices(group, {.color = color, .key = key, .own = last_number});
  NumberedSplit part{.number = 0, .ranks = ranks_of_color(color, choices), .rank = 0};
  for (const auto& choice : choices) part.number = std::max(part.number, choice.own + 1);
  part.rank = static_cast<int>(std::ranges::find(part.ranks, group.rank()) - part.ranks.begin());
  return part;
}

int agree_on_number(Communicator& group, int last_number) {
  std::int64_t number = last_number + 1;
  group
      .all_reduce(&number, 1, DType::i64, ReduceOp::max,
                  {.source = {.content = Source::Content::group_number}})
      .wait();
  return static_cast<int>(number);
}

std::vector<int> at_ranks(std::span<const int> members, std::span<const int> ranks) {
  std::vector<int> found;
  for (const int rank : ranks) found.push_back(members[static_cast<std::size_t>(rank)]);
  return found;
}

}  // namespace lockstep::detail
