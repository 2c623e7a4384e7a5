#include "core/system/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "core/environment.h"
#include "core/text.h"

namespace lockstep::inline v0_2::detail {
namespace {

/// Columns of a UTF-8 text, one a character.
std::size_t columns(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

/// Where the last column of a line of a table begins: after the first gap of two spaces or more
/// behind the first word. The first word, if there is no gap.
std::size_t last_column(std::string_view line) {
  const auto first = std::min(line.find_first_not_of(' '), line.size());
  const auto gap = line.find("  ", first);
  return gap == std::string_view::npos ? first
                                       : std::min(line.find_first_not_of(' ', gap), line.size());
}

/// The last space, from a place on, that leaves at most room columns before it; else the first one:
/// a word is never broken. npos if there is no space.
std::size_t place_of_break(std::string_view line, std::size_t from, std::size_t room) {
  auto found = std::string_view::npos;
  for (auto space = line.find(' ', from); space != std::string_view::npos;
       space = line.find(' ', space + 1)) {
    if (found != std::string_view::npos && columns(line.substr(0, space)) > room) break;
    found = space;
  }
  return found;
}

std::string wrapped_line(std::string_view line, std::size_t width) {
  constexpr std::size_t least_room = 20;
  auto from = last_column(line);
  auto indent = columns(line.substr(0, from));
  if (indent + least_room > width) indent = std::min<std::size_t>(4, width / 2);
  std::string out;
  auto room = width;
  while (columns(line) > room) {
    const auto end = place_of_break(line, from, room);
    if (end == std::string_view::npos) break;
    out += concat(line.substr(0, end), '\n', std::string(indent, ' '));
    line.remove_prefix(end + 1);
    from = 0;
    room = width - indent;
  }
  return concat(out, line);
}

}  // namespace

bool is_capable_terminal(int fd) {
  if (isatty(fd) == 0) return false;
  const auto type = variable("TERM");
  return type && *type != "dumb";
}

bool is_colour_refused() { return variable("NO_COLOR").has_value(); }

bool shows_colour(int fd) { return !is_colour_refused() && is_capable_terminal(fd); }

std::string in_tone(std::string_view text, Tone tone, bool colour) {
  if (!colour) return std::string(text);
  const std::string_view begin = tone == Tone::error    ? "\x1b[1;31m"
                                 : tone == Tone::strong ? "\x1b[1m"
                                                        : "\x1b[36m";
  return concat(begin, text, "\x1b[0m");
}

std::size_t terminal_width(int fd) {
  winsize size{};
  return is_capable_terminal(fd) && ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

std::string table(const std::string& title, const std::vector<Row>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    // The last cell of a row is not padded and does not affect the widths.
    for (std::size_t i = 0; i + 1 < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text = title + '\n';
  for (const auto& row : rows) {
    text += ' ';
    for (std::size_t i = 0; i < row.size(); ++i) {
      text += ' ' + row[i];
      if (i + 1 < row.size()) text.append(widths[i] - row[i].size() + 1, ' ');
    }
    text += '\n';
  }
  return text;
}

std::string wrapped(std::string_view text, std::size_t width) {
  std::string out;
  while (width > 0 && !text.empty()) {
    const auto size = std::min(text.find('\n'), text.size());
    out += wrapped_line(text.substr(0, size), width);
    text.remove_prefix(size);
    if (text.empty()) break;
    out += '\n';
    text.remove_prefix(1);
  }
  return concat(out, text);
}

namespace {

constexpr char escape = '\x1b';
constexpr std::string_view reset = "\x1b[0m";

bool between(char c, unsigned first, unsigned last) {
  const auto code = static_cast<unsigned char>(c);
  return code >= first && code <= last;
}

/// The length of the valid UTF-8 character at the beginning; 0 for none.
/// Units: bytes.
std::size_t utf8_length(std::string_view text) {
  const std::size_t length = between(text[0], 0xc2, 0xdf)   ? 2
                             : between(text[0], 0xe0, 0xef) ? 3
                             : between(text[0], 0xf0, 0xf4) ? 4
                                                            : 0;
  if (length == 0 || text.size() < length) return 0;
  const auto rest = text.substr(1, length - 1);
  return std::ranges::all_of(rest, [](char c) { return between(c, 0x80, 0xbf); }) ? length : 0;
}

/// A C1 control character at the beginning of a text: ESC and a character, UTF-8, or one byte.
/// `letter` is the character after ESC in the first form.
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

/// The length of the escape sequence that begins with this control character. An incomplete
/// sequence ends with the line.
/// Units: bytes.
std::size_t sequence_length(std::string_view text, const Control& control) {
  auto at = control.length;
  const auto skip = [&](unsigned first, unsigned last) {
    while (at < text.size() && between(text[at], first, last)) ++at;
  };
  if (control.letter == '[') {
    skip(0x30, 0x3f);
    skip(0x20, 0x2f);
  } else if (std::string_view("]PX^_").find(control.letter) != std::string_view::npos) {
    // A control string, which ends with BEL or ST.
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

}  // namespace lockstep::detail
