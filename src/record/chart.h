#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "record/run.h"

namespace lockstep::inline v0_2::record {

/// Text escaped for use between tags and in attributes. A question mark replaces invalid UTF-8 and
/// control characters.
std::string escaped(std::string_view text);

/// "1.23 GB", by powers of a thousand.
std::string bytes_text(double bytes);

/// Four digits that count, as "0.0123", "98.12", "12345".
std::string number_text(double value);

/// How the report looks, by day and by night.
inline constexpr const char* report_style = R"(
:root { color-scheme: light dark; --page: #fbfbfa; --ink: #1f2328; --quiet: #636a73; --rule: #dcdfe3;
  --line-0: #2563eb; --line-1: #c2570c; --line-2: #0f8a5f; --line-3: #b91c4a; --line-4: #7c3aed;
  --line-5: #0e7490; --compute: #2563eb; --communication: #ea8a1a; --waiting: #b3b9c1; }
@media (prefers-color-scheme: dark) {
  :root { --page: #16181b; --ink: #e6e8ea; --quiet: #9aa2ab; --rule: #34393f; --line-0: #6ea8fe;
    --line-1: #f2a65a; --line-2: #4fd1a1; --line-3: #f4799b; --line-4: #b79bff; --line-5: #5cc8dd;
    --compute: #5b95f5; --communication: #f2a65a; --waiting: #59616b; } }
body { margin: 0 auto; max-width: 72rem; padding: 2rem 1.5rem 4rem; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2.5rem 0 .75rem; }
p { margin: .4rem 0; } .quiet { color: var(--quiet); overflow-wrap: anywhere; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr)); gap: 1rem;
  margin: 1.5rem 0 0; }
.facts div { border-top: 2px solid var(--rule); padding-top: .4rem; }
.facts dt { color: var(--quiet); font-size: .85rem; } .facts dd { margin: 0; font-size: 1.35rem; }
.facts small { display: block; color: var(--quiet); font-size: .8rem; }
.charts { display: grid; margin-top: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(26rem, 100%), 1fr));
  gap: 1.5rem 2rem; }
figure { margin: 0; } figcaption { font-weight: 600; margin-bottom: .25rem; }
svg { display: block; width: 100%; height: auto; } svg.bar { height: 18px; min-width: 12rem; }
.grid { stroke: var(--rule); } .tick { fill: var(--quiet); font-size: 12px; }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round; }
.legend span { margin-right: 1rem; white-space: nowrap; }
.legend i { display: inline-block; width: .7rem; height: .7rem; margin-right: .35rem;
  border-radius: 2px; }
.compute { fill: var(--compute); background: var(--compute); }
.communication { fill: var(--communication); background: var(--communication); }
.waiting { fill: var(--waiting); background: var(--waiting); }
table { border-collapse: collapse; width: 100%; } .scroll { overflow-x: auto; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--rule);
  font-variant-numeric: tabular-nums; white-space: nowrap; }
th { color: var(--quiet); font-weight: 500; } th:first-child, td:first-child { text-align: left; }
table.plain td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
td.wide { width: 40%; }
)";

/// Lines over steps, as inline SVG with a legend; a gap where a value is no number. Colours are the
/// page's --line-0, --line-1, …
std::string line_chart(const std::string& title,
                       const std::vector<std::pair<std::string, Curve>>& curves);

/// A row of parts of a whole, as inline SVG. Colours are the page's classes compute, waiting and
/// communication.
std::string stacked_bar(const RankInterval& parts, double longest, const std::string& description);

/// About five round numbers from one to the other. lowest < highest.
std::vector<double> ticks(double lowest, double highest);

/// At most so many points that look the same: of each stretch the first, the least, the greatest
/// and the last.
Curve thinned(const Curve& curve, std::size_t most);

}  // namespace lockstep::record
