#pragma once

#include <string>

namespace lockstep::inline v0_2::detail {

/// The time now, in UTC, in a format of strftime().
std::string utc_text(const char* format);

}  // namespace lockstep::detail
