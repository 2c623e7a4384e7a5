#include "record/page.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/text.h"
#include "record/palette.h"

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

std::string percent_text(double share) { return number_text(100 * share) + " %"; }

namespace {

constexpr const char* style = R"(
:root { color-scheme: light dark; --page: #fbfbfa; --ink: #1f2328; --quiet: #636a73; --rule: #dcdfe3;
  --note: #fff6e5; }
@media (prefers-color-scheme: dark) {
  :root { --page: #16181b; --ink: #e6e8ea; --quiet: #9aa2ab; --rule: #34393f; --note: #2b2519; } }
body { margin: 0 auto; max-width: 72rem; padding: 2rem 1.5rem 4rem; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.5rem 0 .75rem; }
p { margin: .4rem 0; } .quiet { color: var(--quiet); overflow-wrap: anywhere; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: 1rem;
  margin: 1.5rem 0 0; }
.facts div { border-top: 2px solid var(--rule); padding-top: .4rem; min-width: 0; }
.facts dt { color: var(--quiet); font-size: .85rem; overflow-wrap: anywhere; }
.facts dd { margin: 0; font-size: 1.35rem; }
.facts small { display: block; color: var(--quiet); font-size: .8rem; }
ul.advice { list-style: none; margin: 0; padding: 0; }
ul.advice li { background: var(--note); border-left: 3px solid var(--communication);
  padding: .5rem .8rem; margin: .5rem 0; overflow-wrap: anywhere; }
ul.advice b { display: block; }
.charts { display: grid; margin-top: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(26rem, 100%), 1fr));
  gap: 1.5rem 2rem; }
figure { margin: 0; min-width: 0; }
figcaption { font-weight: 600; margin-bottom: .25rem; overflow-wrap: anywhere; }
figcaption small { color: var(--quiet); font-weight: 400; }
svg { display: block; width: 100%; height: auto; } svg.bar { height: 18px; min-width: 12rem; }
.grid { stroke: var(--rule); } .tick { fill: var(--quiet); font-size: 12px; }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round; }
.raw { stroke-width: 1; stroke-opacity: .35; } .second { stroke-dasharray: 6 4; }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1rem; }
.legend span { overflow-wrap: anywhere; }
.legend i { display: inline-block; width: .7rem; height: .7rem; margin-right: .35rem;
  border-radius: 2px; }
.legend i.second { width: .25rem; box-shadow: .45rem 0 0 0 currentColor; margin-right: .8rem; }
table { border-collapse: collapse; width: 100%; } .scroll { overflow-x: auto; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--rule);
  font-variant-numeric: tabular-nums; white-space: nowrap; }
th { color: var(--quiet); font-weight: 500; } th:first-child, td:first-child { text-align: left; }
table.plain th, table.plain td { text-align: left; white-space: normal; overflow-wrap: anywhere;
  vertical-align: top; }
table.plain td:first-child { min-width: 7.5rem; width: 30%; }
td.wide { width: 40%; }
@media (max-width: 40rem) {
  body { padding: 1.2rem 1rem 3rem; } .tick { font-size: 18px; } .curve { stroke-width: 3; }
  .raw { stroke-width: 1.5; } svg.bar { min-width: 5rem; } th, td { padding: .25rem .4rem; } }
)";

}  // namespace

std::string html_page(const std::string& title, const std::string& body, int refresh_seconds) {
  detail::TextStream out;
  out << "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\n<meta "
         "name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n";
  if (refresh_seconds > 0) {
    out << "<meta http-equiv=\"refresh\" content=\"" << refresh_seconds << "\"/>\n";
  }
  out << "<title>" << escaped(title) << "</title>\n<style>" << style << palette_style
      << "</style></head>\n<body>\n<h1>" << escaped(title) << "</h1>\n"
      << body << "</body></html>\n";
  return out.str();
}

}  // namespace lockstep::record
