#include "read_pass.h"

#include <algorithm>
#include <cstddef>

namespace lockstep::bench {

float read_pass(std::span<const float> values) {
  // Sums apart, so that additions do not wait for one another.
  float sums[64] = {};
  for (std::size_t i = 0; i + 64 <= values.size(); i += 64) {
    for (std::size_t j = 0; j < 64; ++j) sums[j] += values[i + j];
  }
  return *std::max_element(sums, sums + 64);
}

}  // namespace lockstep::bench
