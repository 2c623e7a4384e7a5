#pragma once

#include <cstddef>
#include <optional>

#include "bench/transport.h"

namespace lockstep::bench {

/// Below this round trip two cores share a cache, from it on they do not.
inline constexpr double near_limit_ns = 200;

/// Round trip of one cache line between the cores of ranks 0 and 1, or between any two where the
/// ranks are not kept to different ones; empty on a machine of one core, and where waiting ranks
/// would keep the cores. A virtual machine's cores
/// move nearer and farther, and every figure with them. Units: ns. Ranks: all; the result is rank
/// 0's, the others sleep meanwhile.
std::optional<double> cache_line_round_trip(Transport& transport);

/// What a[i] += b[i] over ordinary memory gives when all ranks do it at once, on 100 MB each: bytes
/// read and written by all ranks over the slowest one's time, median of several. Units: GB/s, 10^9
/// bytes. Ranks: all; the same result on each.
double stream_bandwidth(Transport& transport);

}  // namespace lockstep::bench
