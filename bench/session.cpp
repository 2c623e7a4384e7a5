#include "bench/session.h"

#include <iomanip>
#include <optional>
#include <ostream>
#include <thread>

#include "bench/collective_bench.h"
#include "bench/round_trip.h"
#include "bench/row.h"
#include "core/text.h"
#include "lockstep/version.h"

namespace lockstep::bench {

namespace {

void write_probe(std::ostream& out, const char* when, std::optional<double> probe_ns) {
  out << "# cache line round trip between two cores, " << when << ": ";
  if (!probe_ns) {
    out << "not measured, there is one core\n";
    return;
  }
  out << std::fixed << std::setprecision(0) << *probe_ns << " ns ("
      << (*probe_ns < near_limit_ns ? "near" : "far") << ")\n";
}

void write_surroundings(std::ostream& out, const Transport& transport, const Settings& settings,
                        std::optional<double> stream_gbs) {
  out << "# lockstep " << version() << ", " << name(settings.collective)
      << (settings.wire ? lockstep::detail::concat(" as ", name(*settings.wire)) : "") << ", "
      << lockstep::detail::plural(transport.size(), "rank")
      << (settings.threads ? " as threads on " : " as processes on ")
      << lockstep::detail::plural(std::thread::hardware_concurrency(), "logical CPU")
      << ", backend " << transport.backend() << "\n";
  if (stream_gbs) {
    out << "# a += b in all ranks at once: " << std::fixed << std::setprecision(1) << *stream_gbs
        << " GB/s\n";
  }
}

}  // namespace

void run_session(Transport& transport, const Settings& settings, std::ostream& out) {
  const bool table = !settings.json && transport.rank() == 0;
  std::optional<double> stream_gbs;
  if (settings.stream) stream_gbs = stream_bandwidth(transport);
  const std::optional<double> before = cache_line_round_trip(transport);
  if (table) {
    write_surroundings(out, transport, settings, stream_gbs);
    write_probe(out, "before", before);
    out << table_head() << std::flush;
  }
  std::optional<std::int64_t> wrong;
  measure_all(transport, settings, [&](Row row) {
    row.stream_gbs = stream_gbs;
    if (row.wrong) wrong = wrong.value_or(0) + *row.wrong;
    out << (settings.json ? json_line(row) + "\n" : table_line(row)) << std::flush;
  });
  const std::optional<double> after = cache_line_round_trip(transport);
  if (table) {
    write_probe(out, "after", after);
    if (wrong) out << "# wrong elements: " << *wrong << "\n";
    out << std::flush;
  }
}

}  // namespace lockstep::bench
