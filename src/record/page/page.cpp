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
    const char letter = text[0];
    out += size == 0       ? "?"
           : letter == '&' ? "&amp;"
           : letter == '<' ? "&lt;"
           : letter == '>' ? "&gt;"
           : letter == '"' ? "&quot;"
                           : text.substr(0, size);
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

const char* const page_template = R"html(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
{{?refresh}}<meta http-equiv="refresh" content="{{refresh}}"/>{{/?refresh}}
<title>{{title}}</title>
<style>
:root { color-scheme: light dark; --page: #fbfbfa; --ink: #1f2328; --quiet: #636a73; --rule: #dcdfe3;
  --note: #fff6e5; --step: #1f2328; --compute: #2563eb; --loading: #0d9488; --communication: #c2700f;
  --waiting: #8b939d; --quantity-0: #7c3aed; --quantity-1: #4d7c0f; --quantity-2: #b91c4a;
  --quantity-3: #92400e; --quantity-4: #0891b2; --quantity-5: #c026d3; --quantity-6: #6b645d;
  --lightness: 38%; }
@media (prefers-color-scheme: dark) {
  :root { --page: #16181b; --ink: #e6e8ea; --quiet: #9aa2ab; --rule: #34393f; --note: #2b2519;
    --step: #e6e8ea; --compute: #5b95f5; --loading: #2dc4b4; --communication: #f2a65a;
    --waiting: #7d8691; --quantity-0: #b79bff; --quantity-1: #a3d65c; --quantity-2: #f4799b;
    --quantity-3: #d9a066; --quantity-4: #5cc8dd; --quantity-5: #e88bf0; --quantity-6: #c8bfb6;
    --lightness: 70%; } }
body { margin: 0 auto; max-width: 72rem; padding: 2rem 1.5rem 4rem; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: 0; }
h2 { font-size: 1.1rem; margin: 2.5rem 0 .75rem; }
p { margin: .4rem 0; } .quiet { color: var(--quiet); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: 1rem;
  margin: 1.5rem 0 0; }
.facts div { border-top: 2px solid var(--rule); padding-top: .4rem; min-width: 0; }
.facts dt { color: var(--quiet); font-size: .85rem; }
.facts dd { margin: 0; font-size: 1.35rem; }
.facts small { display: block; color: var(--quiet); font-size: .8rem; }
ul.advice { list-style: none; margin: 0; padding: 0; }
ul.advice li { background: var(--note); border-left: 3px solid var(--communication);
  padding: .5rem .8rem; margin: .5rem 0; }
ul.advice b { display: block; }
figure { margin: 1rem 0 1.5rem; }
figcaption { font-weight: 600; margin-bottom: .25rem; }
figcaption small { color: var(--quiet); font-weight: 400; }
svg { display: block; width: 100%; overflow: visible; } svg.bar { height: 18px; min-width: 8rem; }
svg.chart { height: 240px; width: calc(100% - 100px); margin: 12px 28px 44px 72px; }
.grid { stroke: var(--rule); } .tick { fill: var(--quiet); font-size: 12px; }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round; vector-effect: non-scaling-stroke; }
.raw { stroke-width: 1; stroke-opacity: .35; } .second { stroke-dasharray: 6 4; }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1rem; }
.legend i { display: inline-block; width: .7rem; height: .7rem; margin-right: .35rem;
  border-radius: 2px; }
.legend i.second { width: .25rem; box-shadow: .45rem 0 0 0 currentColor; margin-right: .8rem; }
table { border-collapse: collapse; width: 100%; } .scroll { overflow-x: auto; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--rule);
  font-variant-numeric: tabular-nums; white-space: nowrap; }
th { color: var(--quiet); font-weight: 500; white-space: normal; vertical-align: bottom; }
th:not(.name) { overflow-wrap: normal; } th:first-child, td:first-child { text-align: left; }
td:first-child, .name { min-width: 7.5rem; white-space: normal; }
table.plain th, table.plain td { text-align: left; white-space: normal; vertical-align: top; }
table.plain td:first-child { width: 30%; }
td.wide { width: 20%; }
@media (max-width: 40rem) {
  body { padding: 1.2rem 1rem 3rem; } svg.bar { min-width: 5rem; } th, td { padding: .25rem .4rem; } }
</style></head>
<body>
<h1>{{title}}</h1>
{{?intro}}<p class="quiet">{{intro}}</p>{{/?intro}}
{{?first_run}}<p class="quiet">Curves of {{first_run}} are solid, those of {{second_run}} dashed. A difference is the second run's value less the first's.</p>{{/?first_run}}
{{?facts}}
<dl class="facts">
{{#facts}}
<div><dt>{{name}}</dt><dd>{{value}}{{?remark}}<small>{{remark}}</small>{{/?remark}}</dd></div>
{{/#facts}}
</dl>
{{/?facts}}
{{?advice}}
<h2>What stands out</h2>
<ul class="advice">
{{#advice}}
<li><b>{{finding}}</b>{{remedy}}</li>
{{/#advice}}
</ul>
{{/?advice}}
{{?differences}}
<h2>Differences</h2>
<div class="scroll"><table><tr><th>quantity</th><th class="name">{{first_run}}</th><th class="name">{{second_run}}</th><th>difference</th><th>relative</th></tr>
{{#differences}}
<tr><td>{{name}}</td><td>{{first}}</td><td>{{second}}</td><td>{{difference}}</td><td>{{relative}}</td></tr>
{{/#differences}}
</table></div>
{{/?differences}}
{{?has_curves}}
<h2>Curves</h2>
{{?no_values}}<p>The run has recorded no values yet.</p>{{/?no_values}}
{{#charts}}
{{&chart}}
{{/#charts}}
{{/?has_curves}}
{{?has_times}}
<h2>Where the time of a step went</h2>
{{?no_intervals}}<p>The run has ended no interval yet.</p>{{/?no_intervals}}
{{?measured}}
<p class="legend"><span><i style="background: var(--compute)"></i>compute</span>
{{?loads}}<span><i style="background: var(--loading)"></i>loading data</span>{{/?loads}}
<span><i style="background: var(--communication)"></i>communication</span>
<span><i style="background: var(--waiting)"></i>waiting</span></p>
{{/?measured}}
{{?ranks}}
<div class="scroll"><table><tr><th>rank</th><th></th><th>compute ms</th>{{?loads}}<th>loading ms</th>{{/?loads}}<th>communication ms</th><th>waiting ms</th><th>step ms</th><th>exchanged</th><th>compressed</th></tr>
{{#ranks}}
<tr><td>{{rank}}</td><td class="wide">{{&bar}}</td><td>{{compute}}</td>{{?loads}}<td>{{loading}}</td>{{/?loads}}<td>{{communication}}</td><td>{{waiting}}</td><td>{{step}}</td><td>{{exchanged}}</td><td>{{compressed}}</td></tr>
{{/#ranks}}
</table></div>
{{/?ranks}}
{{&step_chart}}
{{/?has_times}}
{{?constants}}
<h2>Values that did not change</h2>
<table class="plain">{{#constants}}<tr><td>{{name}}</td><td>{{value}}</td></tr>
{{/#constants}}</table>
{{/?constants}}
{{?environment}}
<h2>Environment</h2>
<table class="plain">
{{#environment}}
<tr><td>{{name}}</td><td>{{value}}</td></tr>
{{/#environment}}
</table>
{{/?environment}}
{{?environments}}
<h2>Differences of the environment</h2>
<table class="plain"><tr><th></th><th class="name">{{first_run}}</th><th class="name">{{second_run}}</th></tr>
{{#environments}}
<tr><td>{{name}}</td><td>{{first}}</td><td>{{second}}</td></tr>
{{/#environments}}
</table>
{{/?environments}}
{{?has_trace}}<p class="quiet">trace.json beside this page shows each rank's time, collective by collective, in the part of the run that was traced last: open it in Perfetto, or in chrome://tracing.</p>{{/?has_trace}}
{{?discarded}}<p class="quiet">discarded.jsonl has {{discarded}} of steps that a later part of the run computed again.</p>{{/?discarded}}
{{?remarks}}
<h2>Remarks</h2>
{{#remarks}}
<p>{{remark}}</p>
{{/#remarks}}
{{/?remarks}}
</body></html>
)html";

const char* const chart_template =
    R"html(<figure><figcaption>{{title}}{{?log}} <small>logarithmic axis{{?smoothing}};{{/?smoothing}}</small>{{/?log}}{{?smoothing}} <small>faint: as recorded; strong: mean of about {{smoothing}} values</small>{{/?smoothing}}</figcaption>
<svg class="chart" role="img" aria-label="{{title}}">
{{&drawing}}</svg>
<p class="legend">{{#lines}}<span><i{{?second}} class="second"{{/?second}} style="background: {{colour}}; color: {{colour}}"></i>{{name}} {{last}}</span> {{/#lines}}</p></figure>)html";

}  // namespace lockstep::record
