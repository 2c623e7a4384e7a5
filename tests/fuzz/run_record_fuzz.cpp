#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "lockstep/error.h"
#include "record/folder.h"
#include "record/page/report.h"
#include "record/scalar.h"
#include "record/trace_file.h"
#include "tests/fuzz/fuzz.h"
#include "tests/record/page_fault.h"
#include "tests/temporary_folder.h"

namespace lockstep::inline v0_2::record {
namespace {

using fuzzing::require;
using nlohmann::json;

/// Values from the input, in its order; zeros after its end.
class Source {
 public:
  explicit Source(std::string_view bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }

  template <class Number>
  Number number() {
    Number value{};
    const std::string_view taken = text(sizeof value);
    std::memcpy(&value, taken.data(), taken.size());
    return value;
  }
  std::string_view text(std::size_t size) {
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(taken.size());
    return taken;
  }

 private:
  std::string_view bytes_;
};

// --- files that are read ---------------------------------------------------------------------

void read(const std::filesystem::path& folder, const char* name, std::string_view bytes) {
  for (const char* file : {metrics_name, intervals_name, environment_name})
    fuzzing::write_file(folder / file, "");
  fuzzing::write_file(folder / name, bytes);
  const fuzzing::MemoryLimit memory(4096 * bytes.size() + (4 << 20));
  const Run run = read_run(folder);
  for (const Interval& interval : run.intervals) {
    require(interval.ranks.size() == run.intervals.back().ranks.size(),
            "all intervals have the same ranks");
    const auto again = parse_interval(interval_line(interval));
    require(again && interval_line(*again) == interval_line(interval),
            "a interval written and read again is equal");
  }
  for (const std::string& file : event_files_of(folder))
    require(file.find('/') == std::string::npos, "an event file lies in the folder");
  const std::string page = report_page(run, "run");
  const std::string fault = testing::page_fault(page);
  require(fault.empty(), "the report's page is well-formed: " + fault);
  require(json(page).dump().size() > page.size(), "the report's page is UTF-8");
  for (const char* coordinate : {" x=\"", " y=\"", " cx=\"", " cy=\"", " width=\""})
    for (const char* no_number : {"nan", "-nan", "inf", "-inf"})
      require(page.find(std::string(coordinate) + no_number) == std::string::npos,
              "a coordinate of the report's page is a number");
}

// --- files that are written ------------------------------------------------------------------

void write_scalars(Source source) {
  const auto step = source.number<std::int64_t>();
  const auto elapsed = source.number<double>();
  std::vector<Scalar> scalars;
  while (!source.empty()) {
    const auto length = source.number<std::uint8_t>();
    std::string name(source.text(length));
    scalars.push_back({.name = std::move(name), .value = source.number<double>()});
  }
  const std::string line = metrics_line(step, elapsed, scalars);
  require(line.find('\n') == line.size() - 1, "a record of metrics is one line");
  const json parsed = json::parse(line);
  if (scalars.empty()) require(parsed.at("step") == step, "a record of metrics has its step");

  // TensorFlow's frame: length, its checksum, message, its checksum.
  const std::string event = event_record(elapsed, step, scalars);
  Source frame(event);
  const auto length = frame.number<std::uint64_t>();
  const auto masked = [](std::string_view bytes) {
    const std::uint32_t sum = crc32c(bytes);
    return (sum >> 15 | sum << 17) + 0xa282ead8U;
  };
  require(event.size() == length + 16, "an event's frame has its length");
  require(frame.number<std::uint32_t>() == masked({event.data(), 8}), "and that one's checksum");
  const std::string_view message = frame.text(length);
  require(frame.number<std::uint32_t>() == masked(message), "and its message's checksum");
}

void write_trace(const std::filesystem::path& folder, Source source) {
  const auto small = [&] { return static_cast<std::int64_t>(source.number<std::uint32_t>()); };
  const auto rank = static_cast<int>(source.number<std::uint8_t>());
  const auto origin = small();
  const std::string host(source.text(source.number<std::uint8_t>()));
  std::vector<TraceSpan> spans;
  while (!source.empty()) {
    TraceSpan span{.begin = small()};
    span.end = span.begin + small();
    span.bytes = source.number<std::uint32_t>();
    span.kind = static_cast<TraceSpan::Kind>(source.number<std::uint8_t>() % 5);
    span.collective = static_cast<Collective>(source.number<std::uint8_t>() % 10);
    span.bucket = source.number<std::uint8_t>() % 8;
    if (span.kind != TraceSpan::Kind::ready) span.bucket -= 1;
    spans.push_back(span);
  }
  TraceFile file(folder / trace_name, origin);
  file.add(rank, host, spans, source.number<std::uint8_t>());
  file.commit();
  const json trace = json::parse(testing::content(folder / trace_name));
  for (const json& event : trace.at("traceEvents"))
    require(event.at("pid") == rank && !event.at("name").get<std::string>().empty(),
            "an event has its rank and a name");

  // The rows of the rank's thread cover its time once.
  if (spans.empty()) return;
  const Timeline rows = timeline(spans);
  std::int64_t covered = 0;
  for (const auto* row : {&rows.computing, &rows.waiting, &rows.working})
    for (const Stretch& stretch : *row) {
      require(stretch.begin < stretch.end, "a stretch of a row has a length");
      covered += stretch.end - stretch.begin;
    }
  Stretch whole{.begin = spans.front().begin, .end = spans.front().end};
  for (const TraceSpan& span : spans)
    whole = {.begin = std::min(whole.begin, span.begin), .end = std::max(whole.end, span.end)};
  require(covered == whole.end - whole.begin, "the rows cover the time from first to last span");
}

}  // namespace
}  // namespace lockstep::record

/// The first byte names the file that the rest is read as, or what is written from it.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep::record;
  static const lockstep::testing::TemporaryFolder folder;
  if (size == 0) return 0;
  const std::string_view rest = lockstep::fuzzing::text_of({data + 1, size - 1});
  switch (data[0]) {
    case 'm':
      read(folder.path(), metrics_name, rest);
      break;
    case 'l':
      read(folder.path(), intervals_name, rest);
      break;
    case 'e':
      read(folder.path(), environment_name, rest);
      break;
    case 's':
      write_scalars(Source(rest));
      break;
    case 't':
      write_trace(folder.path(), Source(rest));
      break;
    default:
      break;
  }
  return 0;
}
