#include "record/page/page.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/text.h"

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

std::string escaped_name(std::string_view name) {
  std::string out;
  for (const char c : escaped(name)) {
    out += c;
    if (c == '_') out += "<wbr/>";
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

std::string milliseconds_text(double seconds) { return number_text(1000 * seconds) + " ms"; }

std::string percent_text(double share) { return number_text(100 * share) + " %"; }

namespace {

/// The values of the sections around a place, from the outermost to the innermost.
using Scope = std::vector<const Values*>;

/// The text or list of this name; null if there is none.
template <class Named>
const Named* find(const Scope& scope, std::map<std::string, Named, std::less<>> Values::*member,
                  std::string_view name) {
  for (auto one = scope.rbegin(); one != scope.rend(); ++one) {
    const auto& named = (*one)->*member;
    if (const auto found = named.find(name); found != named.end()) return &found->second;
  }
  return nullptr;
}

void append(std::string& out, std::string_view text, Scope& scope) {
  for (;;) {
    const auto begin = text.find("{{");
    out += text.substr(0, begin);
    if (begin == text.npos) return;
    const auto tag = text.substr(begin + 2, text.find("}}", begin) - begin - 2);
    text.remove_prefix(begin + 2 + tag.size() + 2);
    const char kind = tag.front();
    const bool is_section = kind == '#' || kind == '?';
    const auto name = tag.substr(is_section || kind == '&' ? 1 : 0);
    const auto* value = find(scope, &Values::texts, name);
    if (!is_section) {
      if (value != nullptr) out += kind == '&' ? *value : escaped(*value);
      continue;
    }
    const auto end = detail::concat("{{/", tag, "}}");
    auto section = text.substr(0, text.find(end));
    text.remove_prefix(section.size() + end.size());
    if (section.starts_with('\n') && text.starts_with('\n')) {  // tags on lines of their own
      section.remove_prefix(1);
      text.remove_prefix(1);
    }
    const auto* list = find(scope, &Values::lists, name);
    if (kind == '#' && list != nullptr) {
      for (const auto& element : *list) {
        scope.push_back(&element);
        append(out, section, scope);
        scope.pop_back();
      }
    } else if (kind == '?' &&
               ((value != nullptr && !value->empty()) || (list != nullptr && !list->empty()))) {
      append(out, section, scope);
    }
  }
}

}  // namespace

std::vector<Values> list_of(const std::string& name, const std::vector<std::string>& texts) {
  std::vector<Values> list;
  for (const auto& text : texts) list.push_back({{name, text}});
  return list;
}

std::string filled(std::string_view text, const Values& values) {
  std::string out;
  Scope scope{&values};
  append(out, text, scope);
  return out;
}

}  // namespace lockstep::record
