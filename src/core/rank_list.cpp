#include "core/rank_list.h"

#include <algorithm>

#include "core/text.h"

namespace lockstep::inline v0_2::detail {

std::string rank_list(std::span<const int> ranks,
                      const std::function<std::string_view(int)>& note) {
  constexpr std::size_t most = 16;
  if (ranks.empty()) return "no rank";
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), most); ++i) {
    text += concat(i == 0 ? "" : ", ", ranks[i], note ? note(ranks[i]) : "");
  }
  if (ranks.size() > most) text += concat(" and ", ranks.size() - most, " more");
  return text;
}

}  // namespace lockstep::detail
