#pragma once

#include <bitset>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "tests/protocol/relacy_atomics.h"

namespace lockstep::testing {

struct CheckResult {
  bool holds;
  std::string failure;  ///< "DATA RACE"
  std::string history;  ///< the interleaving that failed
  unsigned long long interleavings;
  double seconds;
};

/// One scenario with one setting.
struct Check {
  std::string name;
  int ranks;
  /// Most switches of ranks that run, to others that can run; 0 for all interleavings.
  unsigned bound;
  bool is_short;  ///< whether ctest runs it
  std::function<CheckResult()> run;
};

const std::vector<Check>& checks();

}  // namespace lockstep::testing
