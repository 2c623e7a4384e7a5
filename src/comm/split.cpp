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

NumberedSplit split_numbered(Communicator& group, int color, int key, std::int64_t last_number) {
  const auto choices = exchange_choices(group, {.color = color, .key = key, .own = last_number});
  NumberedSplit part{.number = 0, .ranks = {}, .rank = 0};
  for (std::size_t rank = 0; rank < choices.size(); ++rank) {
    part.number = std::max(part.number, choices[rank].own + 1);
    if (color >= 0 && choices[rank].color == color) part.ranks.push_back(static_cast<int>(rank));
  }
  std::ranges::stable_sort(part.ranks, {},
                           [&](int rank) { return choices[static_cast<std::size_t>(rank)].key; });
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
