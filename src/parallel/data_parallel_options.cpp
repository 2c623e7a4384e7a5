#include "lockstep/data_parallel_options.h"

#include <algorithm>

#include "core/environment.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {
namespace {

/// Options may be constructed before main(), so this does not fix the environment for init().
Environment usable_environment() {
  try {
    return Environment::read();
  } catch (const InvalidArgument&) {
    return {};  // init() reports it
  }
}

}  // namespace

BucketCaps default_buckets() {
  BucketCaps caps;
  if (const auto mib = usable_environment().bucket_mib) {
    caps.rest = static_cast<std::size_t>(*mib) << 20;
    caps.first = std::min(caps.first, caps.rest);
  }
  return caps;
}

bool default_share_memory() { return usable_environment().share_memory; }

}  // namespace lockstep
