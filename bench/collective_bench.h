#pragma once

#include <functional>

#include "bench/row.h"
#include "bench/settings.h"
#include "bench/transport.h"

namespace lockstep::bench {

/// Measures one line.
///
/// Every repetition starts from inputs that each rank has just written: exchanging untouched
/// buffers again flatters, for their lines lie where the last exchange left them. Only the
/// collective is timed, from a barrier on, and the slowest rank counts. Buffers up to 128 KiB are
/// filled several at a time and exchanged one after the other, each once, within one timed round,
/// because the clock and the leaving of the barrier cost as much as a small exchange. Ranks: all;
/// the row is complete on rank 0.
Row measure(Transport& transport, const Settings& settings, Memory memory, std::size_t bytes);

/// All lines of the settings, each given to write on rank 0 as soon as it is known. Ranks: all.
void measure_all(Transport& transport, const Settings& settings,
                 const std::function<void(const Row&)>& write);

}  // namespace lockstep::bench
