#pragma once

#include "lockstep/samplers.h"

namespace lockstep::inline v0_2::detail {

/// Throws: InvalidArgument of the operation unless 0 <= rank < ranks.
void check_shard(const char* operation, ShardSpec shard);

}  // namespace lockstep::detail
