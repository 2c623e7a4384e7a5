#pragma once

#include <cstddef>
#include <string_view>

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

/// Largest nesting depth of JSON texts that Lockstep reads. Parsing, writing and destroying deeper
/// ones could overflow the stack.
inline constexpr int deepest_json = 32;

/// Whether the text exceeds deepest_json.
inline bool json_is_too_deep(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') quoted = !quoted;
    if (quoted && c == '\\') ++i;
    if (quoted) continue;
    if (c == ']' || c == '}') --depth;
    if ((c == '[' || c == '{') && ++depth > deepest_json) return true;
  }
  return false;
}

/// Throws: CheckpointError if the text exceeds deepest_json. The error text begins with `where`.
inline void check_json_depth(std::string_view text, std::string_view where) {
  if (!json_is_too_deep(text)) return;
  throw CheckpointError(
      concat(where, ": expected at most ", deepest_json, " levels of nesting, found more"));
}

}  // namespace lockstep::detail
