#include "lockstep/train/json_depth.h"

#include <cstddef>

#include "lockstep/core/error.h"
#include "lockstep/core/text.h"

namespace lockstep::detail {

void check_json_depth(std::string_view text, std::string_view where) {
  constexpr int deepest = 32;
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char letter = text[i];
    if (letter == '"') quoted = !quoted;
    if (quoted && letter == '\\') ++i;
    if (quoted) continue;
    if (letter == ']' || letter == '}') --depth;
    if ((letter == '[' || letter == '{') && ++depth > deepest)
      throw CheckpointError(
          concat(where, ": expected at most ", deepest, " levels of nesting, found more"));
  }
}

}  // namespace lockstep::detail
