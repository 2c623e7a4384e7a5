#pragma once

#include <iosfwd>

#include "bench/settings.h"
#include "bench/transport.h"

namespace lockstep::bench {

/// Measures all lines of the settings and writes them on rank 0, each as soon as it is known: a
/// table with what was measured on, or a JSON object a line. Ranks: all.
void run_session(Transport& transport, const Settings& settings, std::ostream& out);

}  // namespace lockstep::bench
