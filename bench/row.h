#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "bench/settings.h"

namespace lockstep::bench {

/// One measured line.
struct Row {
  Collective collective = Collective::all_reduce;
  std::string backend;
  int ranks = 0;
  bool threads = false;
  Memory memory = Memory::group;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  std::optional<DType> wire{};  ///< what elements travelled as, if not as they are
  std::size_t bytes = 0;        ///< the larger of a rank's input and output
  std::size_t count = 0;        ///< elements, as in the collective's call
  double time_us = 0;           ///< median over repetitions of the slowest rank's time
  double best_us = 0;           ///< the fastest repetition
  std::size_t repeats = 0;
  std::optional<std::int64_t> wrong{};  ///< elements on all ranks that are not as expected
  std::optional<double> probe_ns{};    ///< a cache line's round trip between two cores, just before
  std::optional<double> stream_gbs{};  ///< a += b in all ranks at once
};

/// bytes over time. Units: GB/s, 10^9 bytes.
double algorithm_bandwidth(const Row& row);
/// Algorithm bandwidth times the bytes that a link carries for each byte of the buffer. The figure
/// compares with the hardware for any number of ranks. Factors: 2(N-1)/N for all_reduce, (N-1)/N
/// for all_gather and reduce_scatter, 1 for broadcast.
/// Source: nccl-tests, doc/PERFORMANCE.md
double bus_bandwidth(const Row& row);

/// Column titles, two lines.
std::string table_head();
std::string table_line(const Row& row);
/// One JSON object, without a line end.
std::string json_line(const Row& row);

}  // namespace lockstep::bench
