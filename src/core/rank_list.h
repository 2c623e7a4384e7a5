#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::inline v0_2::detail {

/// "rank 1", "ranks 0, 2", "ranks 0, 1, … and 5 more" beyond sixteen, each with what note says of
/// it; "no rank" of none.
std::string rank_list(std::span<const int> ranks,
                      const std::function<std::string_view(int)>& note = {});

}  // namespace lockstep::detail
