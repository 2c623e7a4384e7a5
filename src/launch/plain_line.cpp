#include "launch/plain_line.h"

#include <algorithm>
#include <optional>

namespace lockstep::inline v0_2::launch {
namespace {

constexpr char escape = '\x1b';
constexpr std::string_view reset = "\x1b[0m";

bool between(char c, unsigned first, unsigned last) {
  const auto code = static_cast<unsigned char>(c);
  return code >= first && code <= last;
}

/// How many bytes the valid UTF-8 character at the front has, or 0.
std::size_t utf8_length(std::string_view text) {
  const std::size_t length = between(text[0], 0xc2, 0xdf)   ? 2
                             : between(text[0], 0xe0, 0xef) ? 3
                             : between(text[0], 0xf0, 0xf4) ? 4
                                                            : 0;
  if (length == 0 || text.size() < length) return 0;
  const auto rest = text.substr(1, length - 1);
  return std::ranges::all_of(rest, [](char c) { return between(c, 0x80, 0xbf); }) ? length : 0;
}

/// The control character of eight bits that begins the text, as UTF-8 or as one byte, by the letter
/// that follows ESC in its other form.
struct Control {
  char letter;
  std::size_t length;
};
std::optional<Control> control_at(std::string_view text) {
  if (text[0] == escape && text.size() > 1) return Control{text[1], 2};
  const auto of = [](char c) { return static_cast<char>(static_cast<unsigned char>(c) - 0x40); };
  if (text[0] == '\xc2' && text.size() > 1 && between(text[1], 0x80, 0x9f)) {
    return Control{of(text[1]), 2};
  }
  if (between(text[0], 0x80, 0x9f)) return Control{of(text[0]), 1};
  return std::nullopt;
}

/// The length of a sequence that begins with this control character. One that is cut ends with the
/// line.
std::size_t sequence_length(std::string_view text, const Control& control) {
  auto at = control.length;
  const auto skip = [&](unsigned first, unsigned last) {
    while (at < text.size() && between(text[at], first, last)) ++at;
  };
  if (control.letter == '[') {
    skip(0x30, 0x3f);
    skip(0x20, 0x2f);
  } else if (std::string_view("]PX^_").find(control.letter) != std::string_view::npos) {
    // A string, up to BEL or ST.
    while (at < text.size() && text[at] != '\a') {
      const auto inner = control_at(text.substr(at));
      if (inner && inner->letter == '\\') return at + inner->length;
      ++at;
    }
  } else if (between(control.letter, 0x20, 0x2f)) {
    skip(0x20, 0x2f);
  } else {
    return at;
  }
  return std::min(at + 1, text.size());
}

bool is_colour(std::string_view sequence) {
  return sequence.starts_with("\x1b[") && sequence.ends_with('m') &&
         sequence.find_first_not_of("0123456789;:", 2) == sequence.size() - 1;
}

}  // namespace

std::string plain_line(std::string_view line) {
  const auto ordinary = [](char c) { return c == '\t' || between(c, 0x20, 0x7e); };
  if (std::ranges::all_of(line, ordinary)) return std::string(line);
  std::string shown;
  bool coloured = false;
  while (!line.empty()) {
    std::size_t length = 1;
    if (const auto control = control_at(line)) {
      length = sequence_length(line, *control);
      const auto sequence = line.substr(0, length);
      if (is_colour(sequence)) {
        shown += sequence;
        coloured = sequence != reset && sequence != "\x1b[m";
      }
    } else if (const auto whole = utf8_length(line); whole > 0) {
      length = whole;
      shown += line.substr(0, length);
    } else if (line[0] == '\t' || !(between(line[0], 0, 0x1f) || line[0] == '\x7f')) {
      shown += line[0];
    }
    line.remove_prefix(length);
  }
  if (coloured) shown += reset;
  return shown;
}

}  // namespace lockstep::launch
