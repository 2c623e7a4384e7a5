#include "record/trace_file.h"

#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "core/text.h"

namespace lockstep::inline v0_2::record {
namespace {

using Kind = TraceSpan::Kind;
using detail::concat;

/// A rank's rows, in their order on the screen; the buckets' follow.
enum TraceRow : int { compute, waiting, communication, backward, first_bucket };

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

double microseconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e3; }

}  // namespace

TraceFile::TraceFile(std::filesystem::path path, std::int64_t origin)
    : file_(std::move(path), detail::AtomicFile::Use::log), origin_(origin) {
  out_ << "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [" << std::fixed << std::setprecision(3);
}

std::ostream& TraceFile::event(int rank, int row, std::string_view name, char phase) {
  return out_ << (std::exchange(first_, false) ? "\n" : ",\n") << "{\"pid\": " << rank
              << ", \"tid\": " << row << ", \"name\": \"" << name << "\", \"ph\": \"" << phase
              << '"';
}

std::ostream& TraceFile::event_at(int rank, int row, std::string_view name, char phase,
                                  std::int64_t time) {
  return event(rank, row, name, phase) << ", \"ts\": " << microseconds(time - origin_);
}

void TraceFile::name_rows(int rank, std::string_view host, const std::vector<TraceSpan>& spans,
                          std::uint64_t lost) {
  auto title = concat("rank ", rank, " on ", host);
  if (lost > 0) title += concat(", without its first ", lost, " spans");
  event(rank, 0, "process_name", 'M') << ", \"args\": {\"name\": " << json_text(title) << "}}";
  event(rank, 0, "process_sort_index", 'M') << ", \"args\": {\"sort_index\": " << rank << "}}";
  const auto name = [&](int row, const std::string& text) {
    event(rank, row, "thread_name", 'M') << ", \"args\": {\"name\": \"" << text << "\"}}";
    event(rank, row, "thread_sort_index", 'M') << ", \"args\": {\"sort_index\": " << row << "}}";
  };
  name(compute, "compute");
  name(waiting, "waiting");
  name(communication, "communication");
  name(backward, "backward");
  std::set<int> buckets;
  for (const auto& span : spans) {
    if (span.bucket >= 0) buckets.insert(span.bucket);
  }
  for (const int bucket : buckets) name(first_bucket + bucket, concat("bucket ", bucket));
}

void TraceFile::slices(int rank, int row, std::string_view name,
                       const std::vector<Stretch>& stretches) {
  for (const auto& [begin, end] : stretches) {
    event_at(rank, row, name, 'X', begin) << ", \"dur\": " << microseconds(end - begin) << '}';
  }
}

void TraceFile::request(int rank, const TraceSpan& span) {
  const auto what = name(span.collective);
  if (span.bucket >= 0) {
    event_at(rank, first_bucket + span.bucket, what, 'X', span.begin)
        << ", \"dur\": " << microseconds(span.end - span.begin)
        << ", \"args\": {\"bytes\": " << span.bytes << "}}";
    return;
  }
  // Several may be under way at a time, and a row shows only what lies within one another.
  ++flights_;
  event_at(rank, compute, what, 'b', span.begin)
      << ", \"cat\": \"no bucket\", \"id\": " << flights_
      << ", \"args\": {\"bytes\": " << span.bytes << "}}";
  event_at(rank, compute, what, 'e', span.end)
      << ", \"cat\": \"no bucket\", \"id\": " << flights_ << '}';
}

void TraceFile::add(int rank, std::string_view host, const std::vector<TraceSpan>& spans,
                    std::uint64_t lost) {
  name_rows(rank, host, spans, lost);
  const auto rows = timeline(spans);
  slices(rank, compute, "compute", rows.computing);
  slices(rank, waiting, "waiting", rows.waiting);
  slices(rank, communication, "reduce and copy", rows.working);
  for (const auto& span : spans) {
    if (span.kind == Kind::backward) slices(rank, backward, "backward", {{span.begin, span.end}});
    if (span.kind == Kind::request) request(rank, span);
    if (span.kind == Kind::ready) {
      event_at(rank, first_bucket + span.bucket, "ready", 'i', span.begin) << ", \"s\": \"t\"}";
    }
  }
  flush();
}

void TraceFile::flush() {
  file_.write(out_.view());
  out_.str("");
}

void TraceFile::commit() {
  out_ << "\n]}\n";
  flush();
  file_.commit();
}

namespace {

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
