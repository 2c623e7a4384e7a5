#pragma once

#include <string_view>

namespace lockstep::inline v0_2::detail {

/// Most levels of nesting in any JSON text that Lockstep reads. Deeper ones would fill the stack
/// when they are parsed, written or destroyed.
inline constexpr int deepest_json = 32;

/// Whether the text has more levels.
bool json_is_too_deep(std::string_view text);

/// Throws: CheckpointError that begins with where, for such a text.
void check_json_depth(std::string_view text, std::string_view where);

}  // namespace lockstep::detail
