#include "record/markup.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace lockstep::inline v0_2::record {
namespace {

/// How many bytes the character that the text begins with takes, or 0 if it is none.
std::size_t character_at(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto first = byte(0);
  if (first < 0x20) return first == '\n' || first == '\t' ? 1 : 0;
  if (first < 0x7f) return 1;
  const std::size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < size) return 0;
  std::uint32_t code = first & (0xffU >> (size + 1));
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3fU);
  }
  const bool needs_fewer = (size == 3 && code < 0x800) || (size == 4 && code < 0x10000);
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  return needs_fewer || surrogate || code > 0x10ffff || (code & 0xfffe) == 0xfffe ? 0 : size;
}

/// As printf's %f and %g under the "C" locale.
std::string text_of(double value, std::chars_format format, int digits) {
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value, format, digits).ptr;
  return {text.data(), end};
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const auto size = character_at(text);
    switch (size == 1 ? text[0] : '\0') {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += size == 0 ? std::string_view("?") : text.substr(0, size);
    }
    text.remove_prefix(size == 0 ? 1 : size);
  }
  return out;
}

std::string number_text(double value) {
  if (!std::isfinite(value)) return "no number";
  const bool whole = std::abs(value) >= 1000 && std::abs(value) < 1e9;
  return whole ? text_of(value, std::chars_format::fixed, 0)
               : text_of(value, std::chars_format::general, 4);
}

std::string bytes_text(double bytes) {
  constexpr std::array<const char*, 6> units{"B", "kB", "MB", "GB", "TB", "PB"};
  std::size_t unit = 0;
  for (; bytes >= 1000 && unit + 1 < units.size(); ++unit) bytes /= 1000;
  return text_of(bytes, std::chars_format::general, 3) + ' ' + units[unit];
}

}  // namespace lockstep::record
