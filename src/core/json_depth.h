#pragma once

#include <string_view>

namespace lockstep::inline v0_2::detail {

/// Largest nesting depth of JSON texts that Lockstep reads. Parsing, writing and destroying deeper
/// ones could overflow the stack.
inline constexpr int deepest_json = 32;

/// Whether the text exceeds deepest_json.
bool json_is_too_deep(std::string_view text);

/// Throws: CheckpointError if the text exceeds deepest_json. The error text begins with `where`.
void check_json_depth(std::string_view text, std::string_view where);

}  // namespace lockstep::detail
