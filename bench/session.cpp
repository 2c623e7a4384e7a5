#include "bench/session.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "bench/clock.h"
#include "bench/machine.h"
#include "bench/round.h"
#include "core/text.h"
#include "lockstep/version.h"

namespace lockstep::bench {

namespace {

constexpr int warm_up_rounds = 3;
constexpr double row_budget_us = 250'000;
constexpr double fewest_repeats = 7;
constexpr double most_repeats = 201;

/// This rank's time of one round.
double timed_round(Transport& transport, Round& round) {
  round.fill();
  transport.barrier();
  const double begin = now_us();
  round.run();
  return now_us() - begin;
}

/// As many repetitions as fit the budget, by rank 0's clock: all ranks must do the same number.
std::size_t agree_on_repeats(Transport& transport, double round_us) {
  double repeats = std::clamp(row_budget_us / round_us, fewest_repeats, most_repeats);
  transport.broadcast(&repeats, 1, DType::f64, 0);
  return static_cast<std::size_t>(repeats);
}

/// One line.
Row measure(Transport& transport, const Settings& settings, Memory memory, std::size_t bytes) {
  const bool barrier = settings.collective == Collective::barrier;
  Row row{.collective = settings.collective,
          .backend = std::string(transport.backend()),
          .ranks = transport.size(),
          .threads = settings.threads,
          .memory = memory,
          .dtype = settings.dtype,
          .op = settings.op,
          .wire = settings.wire};
  Round round(transport, settings, memory, bytes);
  row.count = barrier ? 0 : part_count(settings, bytes);
  const std::size_t parts =
      in_place(settings.collective) ? 1 : static_cast<std::size_t>(transport.size());
  row.bytes = row.count * parts * size_of(settings.dtype);
  row.probe_ns = cache_line_round_trip(transport);

  const double begin = now_us();
  for (int i = 0; i < warm_up_rounds; ++i) timed_round(transport, round);
  row.repeats = settings.repeats != 0
                    ? settings.repeats
                    : agree_on_repeats(transport, (now_us() - begin) / warm_up_rounds);

  std::vector<double> times;
  std::int64_t wrong = 0;
  for (std::size_t repeat = 0; repeat < row.repeats; ++repeat) {
    times.push_back(timed_round(transport, round) / static_cast<double>(round.length()));
    if (settings.check) wrong += round.count_wrong();
  }
  transport.all_reduce(times.data(), times.size(), DType::f64, ReduceOp::max);
  row.time_us = median(times);
  row.best_us = *std::min_element(times.begin(), times.end());
  if (settings.check) {
    transport.all_reduce(&wrong, 1, DType::i64, ReduceOp::sum);
    row.wrong = wrong;
  }
  return row;
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
    out << "# a += b in all ranks at once: " << lockstep::detail::fixed(*stream_gbs, 1)
        << " GB/s\n";
  }
}

}  // namespace

void measure_all(Transport& transport, const Settings& settings,
                 const std::function<void(const Row&)>& write) {
  std::vector<std::size_t> all_sizes = sizes(settings);
  std::vector<Memory> memories = settings.memories;
  if (settings.collective == Collective::barrier) {
    all_sizes.resize(1);
    memories.resize(1);
  }
  for (const Memory memory : memories) {
    for (const std::size_t bytes : all_sizes) {
      const Row row = measure(transport, settings, memory, bytes);
      if (transport.rank() == 0) write(row);
    }
  }
}

void run_session(Transport& transport, const Settings& settings, std::ostream& out) {
  const bool table = !settings.json && transport.rank() == 0;
  std::optional<double> stream_gbs;
  if (settings.stream) stream_gbs = stream_bandwidth(transport);
  if (table) {
    write_surroundings(out, transport, settings, stream_gbs);
    out << table_head() << std::flush;
  }
  std::optional<std::int64_t> wrong;
  measure_all(transport, settings, [&](Row row) {
    row.stream_gbs = stream_gbs;
    if (row.wrong) wrong = wrong.value_or(0) + *row.wrong;
    out << (settings.json ? json_line(row) + "\n" : table_line(row)) << std::flush;
  });
  if (table && wrong) out << "# wrong elements: " << *wrong << std::endl;
}

}  // namespace lockstep::bench
