#pragma once

#include <functional>
#include <iosfwd>

#include "bench/measured_library.h"
#include "bench/row.h"
#include "bench/settings.h"

namespace lockstep::bench {

/// Measures all lines of the settings, each given to write on rank 0 as soon as it is known.
///
/// Each rank writes its inputs anew before every repetition. Otherwise their cache lines would lie
/// where the last exchange left them, and the figures would be too good. Only the collective is
/// timed, from a barrier on, and the slowest rank counts. The clock and leaving the barrier cost as
/// much as a small exchange. So one timed round exchanges several buffers of up to 128 KiB, each
/// once.
/// Ranks: all; rows are complete on rank 0.
void measure_all(Transport& transport, const Settings& settings,
                 const std::function<void(const Row&)>& write);

/// The same. Rank 0 writes each line as soon as it is known: a table with a description of the
/// machine, or a JSON object a line.
/// Ranks: all.
void run_session(Transport& transport, const Settings& settings, std::ostream& out);

}  // namespace lockstep::bench
