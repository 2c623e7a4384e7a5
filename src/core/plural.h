#pragma once

#include <string>
#include <string_view>

#include "core/text.h"

namespace lockstep::inline v0_2::detail {

/// "1 rank", "2 ranks".
template <class Count>
std::string plural(Count count, std::string_view thing) {
  return concat(count, ' ', thing, count == 1 ? "" : "s");
}

}  // namespace lockstep::detail
