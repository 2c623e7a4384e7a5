#pragma once

#include <cstddef>

namespace lockstep {

/// How large buckets may become. Units: bytes. A parameter larger than rest has a bucket of its
/// own.
struct BucketCaps {
  std::size_t first = std::size_t{1} << 20;  ///< with so many the bucket that is ready first leaves
  std::size_t rest = std::size_t{25} << 20;  ///< the most of each
};

}  // namespace lockstep
