#pragma once

#include <iosfwd>

#include "bench/measured_library.h"
#include "bench/settings.h"

namespace lockstep::bench {

/// Measures all lines of the settings. Rank 0 writes each as soon as it is known: a table with a
/// description of the machine, or a JSON object a line.
/// Ranks: all.
void run_session(Transport& transport, const Settings& settings, std::ostream& out);

}  // namespace lockstep::bench
