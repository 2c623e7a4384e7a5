#include "lockstep/data_parallel_options.h"

#include <algorithm>

#include "core/environment.h"

namespace lockstep::inline v0_2 {

BucketCaps default_buckets() {
  BucketCaps caps;
  if (const auto mib = Environment::get().bucket_mib) {
    caps.rest = static_cast<std::size_t>(*mib) << 20;
    caps.first = std::min(caps.first, caps.rest);
  }
  return caps;
}

bool default_share_memory() { return Environment::get().share_memory; }

}  // namespace lockstep
