#include "core/system/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "core/environment.h"
#include "core/text.h"

namespace lockstep::inline v0_2::detail {

bool is_capable_terminal(int fd) {
  if (isatty(fd) == 0) return false;
  const auto type = variable("TERM");
  return type && *type != "dumb";
}

bool shows_colour(int fd) { return !variable("NO_COLOR") && is_capable_terminal(fd); }

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

namespace {

constexpr char escape = '\x1b';
constexpr std::string_view reset = "\x1b[0m";

bool between(char c, unsigned first, unsigned last) {
  const auto code = static_cast<unsigned char>(c);
  return code >= first && code <= last;
}

/// The length of the escape sequence at the beginning of a text. An incomplete sequence ends with
/// the line.
/// Units: bytes.
std::size_t sequence_length(std::string_view text) {
  if (text.size() < 2) return text.size();
  const char kind = text[1];
  std::size_t last = 1;
  if (std::string_view("]PX^_").find(kind) != std::string_view::npos) {
    // A control string, which ends with BEL or a sequence of its own.
    last = text.find_first_of("\a\x1b", 2);
    if (last < text.size() && text[last] == escape) --last;
  } else if (kind == '[' || between(kind, 0x20, 0x2f)) {
    const unsigned first_of_end = kind == '[' ? 0x40 : 0x30;
    for (last = 2; last < text.size() && between(text[last], 0x20, first_of_end - 1);) ++last;
  }
  return last < text.size() ? last + 1 : text.size();
}

/// The length of the control characters at the beginning of a text; 0 if there are none. They are
/// an escape sequence, a control character of UTF-8 (c2 80 to c2 9f), or one byte.
/// Units: bytes.
std::size_t control_length(std::string_view text) {
  if (text[0] == escape) return sequence_length(text);
  if (text[0] == '\xc2' && text.size() > 1 && between(text[1], 0x80, 0x9f)) return 2;
  return text[0] != '\t' && (between(text[0], 0, 0x1f) || text[0] == '\x7f') ? 1 : 0;
}

bool is_colour(std::string_view sequence) {
  return sequence.starts_with("\x1b[") && sequence.ends_with('m') &&
         sequence.find_first_not_of("0123456789;:", 2) == sequence.size() - 1;
}

}  // namespace

std::string plain_line(std::string_view line) {
  std::string shown;
  bool coloured = false;
  while (!line.empty()) {
    const auto length = control_length(line);
    const auto sequence = line.substr(0, length);
    if (length == 0) {
      shown += line[0];
    } else if (is_colour(sequence)) {
      shown += sequence;
      coloured = sequence != reset && sequence != "\x1b[m";
    }
    line.remove_prefix(length == 0 ? 1 : length);
  }
  if (coloured) shown += reset;
  return shown;
}

}  // namespace lockstep::detail
