#include "bench/row.h"

#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>

#include "core/text.h"

namespace lockstep::bench {

namespace {

bool reduces(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::reduce_scatter;
}

std::string_view memory_name(const Row& row) {
  return row.collective == Collective::barrier ? "none" : name(row.memory);
}

double bus_factor(Collective collective, int ranks) {
  const double n = ranks;
  switch (collective) {
    case Collective::all_reduce:
      return 2 * (n - 1) / n;
    case Collective::all_gather:
    case Collective::reduce_scatter:
      return (n - 1) / n;
    default:
      return 1;
  }
}

}  // namespace

double algorithm_bandwidth(const Row& row) {
  return row.time_us > 0 ? static_cast<double>(row.bytes) / row.time_us * 1e-3 : 0;
}

double bus_bandwidth(const Row& row) {
  return algorithm_bandwidth(row) * bus_factor(row.collective, row.ranks);
}

std::string table_head() {
  return "#         size        count      type    redop   memory       time    algbw    busbw   "
         "#wrong  probe\n"
         "#          (B)   (elements)                                   (us)   (GB/s)   (GB/s)   "
         "         (ns)\n";
}

std::string table_line(const Row& row) {
  std::ostringstream out;
  out << std::fixed << std::setw(14) << row.bytes << std::setw(13) << row.count << std::setw(10)
      << name(row.dtype) << std::setw(9) << (reduces(row.collective) ? name(row.op) : "none")
      << std::setw(9) << memory_name(row) << std::setw(11)
      << std::setprecision(row.time_us < 100 ? 3 : 1) << row.time_us << std::setprecision(2)
      << std::setw(9) << algorithm_bandwidth(row) << std::setw(9) << bus_bandwidth(row)
      << std::setw(9) << (row.wrong ? std::to_string(*row.wrong) : "N/A") << std::setw(7)
      << (row.probe_ns ? lockstep::detail::fixed(*row.probe_ns, 0) : "N/A") << "\n";
  return out.str();
}

std::string json_line(const Row& row) {
  nlohmann::ordered_json json = {{"op", name(row.collective)},
                                 {"backend", row.backend},
                                 {"ranks", row.ranks},
                                 {"started_as", row.threads ? "threads" : "processes"},
                                 {"memory", memory_name(row)},
                                 {"dtype", name(row.dtype)},
                                 {"redop", reduces(row.collective) ? name(row.op) : "none"},
                                 {"bytes", row.bytes},
                                 {"count", row.count},
                                 {"time_us", row.time_us},
                                 {"best_us", row.best_us},
                                 {"repeats", row.repeats},
                                 {"algbw", algorithm_bandwidth(row)},
                                 {"busbw", bus_bandwidth(row)}};
  if (row.wire) json["wire"] = name(*row.wire);
  json["wrong"] = nullptr;
  json["probe_ns"] = nullptr;
  if (row.wrong) json["wrong"] = *row.wrong;
  if (row.probe_ns) json["probe_ns"] = *row.probe_ns;
  if (row.stream_gbs) json["stream_gbs"] = *row.stream_gbs;
  return json.dump();
}

}  // namespace lockstep::bench
