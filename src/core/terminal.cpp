#include "core/terminal.h"

#include <unistd.h>

#include <cstdlib>

#include "core/text.h"

namespace lockstep::inline v0_2::detail {

bool is_capable_terminal(int fd) {
  if (isatty(fd) == 0) return false;
  const char* type = std::getenv("TERM");
  return type != nullptr && *type != '\0' && std::string_view(type) != "dumb";
}

bool is_colour_refused() {
  const char* value = std::getenv("NO_COLOR");
  return value != nullptr && *value != '\0';
}

bool shows_colour(int fd) { return !is_colour_refused() && is_capable_terminal(fd); }

std::string in_tone(std::string_view text, Tone tone, bool colour) {
  if (!colour) return std::string(text);
  const std::string_view begin = tone == Tone::error    ? "\x1b[1;31m"
                                 : tone == Tone::strong ? "\x1b[1m"
                                                        : "\x1b[36m";
  return concat(begin, text, "\x1b[0m");
}

}  // namespace lockstep::detail
