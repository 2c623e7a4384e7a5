#pragma once

#include "lockstep/parallel/bucket_plan.h"
#include "lockstep/sync/all_reduce.h"
#include "lockstep/sync/strategy.h"

namespace lockstep {

/// How the ranks come to equal parameters and buffers at the start.
enum class InitialSync {
  broadcast,  ///< all take rank 0's
  same_seed,  ///< they are equal already; verified by a checksum
};

/// What becomes of buffers (BatchNorm's statistics) at the end of each synchronised backward.
enum class BufferPolicy {
  from_rank0,  ///< all take rank 0's
  none,        ///< every rank keeps its own
};

/// The same on every rank.
struct DataParallelOptions {
  BucketCaps buckets = {};
  Strategy strategy = AllReduce{};
  InitialSync initial_sync = InitialSync::broadcast;
  BufferPolicy buffer_policy = BufferPolicy::from_rank0;
};

}  // namespace lockstep
