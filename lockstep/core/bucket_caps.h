#pragma once

#include <cstddef>

namespace lockstep {

/// How large buckets may become. Units: bytes. A parameter larger than that has a bucket of its
/// own.
struct BucketCaps {
  std::size_t first = std::size_t{1} << 20;  ///< of the bucket that is ready first
  std::size_t rest = std::size_t{25} << 20;
};

}  // namespace lockstep
