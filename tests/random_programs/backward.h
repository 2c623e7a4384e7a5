#pragma once

#include <algorithm>
#include <cstddef>

#include "tests/random_programs/program.h"

namespace lockstep::random_programs {

/// Whether some unit is passed by more than one path.
inline bool paths_meet(const Backward& op) {
  std::size_t passed = 0;
  for (const auto& path : op.paths) passed += path.size();
  return passed > units_of(op).size();
}

/// Whether one backward exchanges gradients of several units.
inline bool several_in_one_backward(const Backward& op) {
  int most = 0;
  int all = 0;
  for (const auto& path : op.paths) {
    int synchronised = 0;
    for (const int unit : path) synchronised += has(op.local, unit) ? 0 : 1;
    most = std::max(most, synchronised);
  }
  for (const int unit : units_of(op)) all += has(op.local, unit) ? 0 : 1;
  return (op.separate ? most : all) > 1;
}

/// Whether a forward changes a buffer that the graph of an earlier one still needs.
inline bool overwrites_saved_buffer(const Backward& op, int index) {
  if (op.separate && !op.forwards_first) return false;
  bool passed = false;
  for (std::size_t number = 0; number < op.paths.size(); ++number) {
    if (std::ranges::find(op.paths[number], index) == op.paths[number].end()) continue;
    if (passed && !has(op.evaluated, static_cast<int>(number))) return true;
    passed = true;
  }
  return false;
}

inline Mask layers_of(const Backward& op, int rank, int unit) {
  return op.layers[static_cast<std::size_t>(rank)][static_cast<std::size_t>(unit)];
}

}  // namespace lockstep::random_programs
