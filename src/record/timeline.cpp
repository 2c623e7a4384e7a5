#include <algorithm>

#include "record/trace_file.h"

namespace lockstep::inline v0_2::record {
namespace {

using Kind = TraceSpan::Kind;

/// The spans of a kind as stretches that neither touch nor overlap, in order.
std::vector<Stretch> joined(const std::vector<TraceSpan>& spans, Kind kind) {
  std::vector<Stretch> found;
  for (const auto& span : spans) {
    if (span.kind == kind && span.end > span.begin) found.push_back({span.begin, span.end});
  }
  std::ranges::sort(found, {}, &Stretch::begin);
  std::vector<Stretch> all;
  for (const auto& one : found) {
    if (!all.empty() && one.begin <= all.back().end) {
      all.back().end = std::max(all.back().end, one.end);
    } else {
      all.push_back(one);
    }
  }
  return all;
}

/// The parts of the stretches outside the others; both arguments as joined() makes them.
std::vector<Stretch> without(const std::vector<Stretch>& stretches,
                             const std::vector<Stretch>& others) {
  std::vector<Stretch> rest;
  auto other = others.begin();
  for (auto [begin, end] : stretches) {
    while (other != others.end() && other->end <= begin) ++other;
    for (auto cut = other; cut != others.end() && cut->begin < end; ++cut) {
      if (cut->begin > begin) rest.push_back({begin, cut->begin});
      begin = std::max(begin, cut->end);
    }
    if (begin < end) rest.push_back({begin, end});
  }
  return rest;
}

}  // namespace

Timeline timeline(const std::vector<TraceSpan>& spans) {
  if (spans.empty()) return {};
  Stretch whole{.begin = spans.front().begin, .end = spans.front().end};
  for (const auto& span : spans) {
    whole.begin = std::min(whole.begin, span.begin);
    whole.end = std::max(whole.end, span.end);
  }
  Timeline rows;
  rows.working = joined(spans, Kind::working);
  rows.waiting = without(joined(spans, Kind::waiting), rows.working);
  rows.computing = without(without({whole}, rows.working), rows.waiting);
  return rows;
}

}  // namespace lockstep::record
