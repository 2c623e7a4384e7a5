#pragma once

#include <optional>
#include <span>
#include <vector>

#include "bench/measured_library.h"

namespace lockstep::bench {

/// Binds the calling thread to these processors. Where the system refuses that, and for an empty
/// list, the thread runs anywhere.
void keep_to(const std::vector<int>& cpus);

/// Round trip of one cache line between the cores of ranks 0 and 1. Without pinning to different
/// cores, it is between any two cores. Empty on a machine of one core, and where waiting ranks
/// would occupy the cores. A virtual machine's cores may change their distance, and all figures
/// change with it.
/// Units: ns.
/// Ranks: all; the result is rank 0's, the others sleep meanwhile.
std::optional<double> cache_line_round_trip(Transport& transport);

/// Bandwidth of a[i] += b[i] over ordinary memory, by all ranks at once on 100 MB each. It is the
/// bytes read and written by all ranks over the slowest rank's time, median of several.
/// Units: GB/s, 10^9 bytes.
/// Ranks: all; the same result on each.
double stream_bandwidth(Transport& transport);

/// Reads all values once, as fast as memory gives them: what selections and exchanges are measured
/// against. The result is to be used, or nothing is read.
float read_pass(std::span<const float> values);

}  // namespace lockstep::bench
