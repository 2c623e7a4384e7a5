#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/strategies.h"
#include "lockstep/strategy.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2 {

/// How the ranks come to equal parameters and buffers at the start.
enum class InitialSync {
  broadcast,  ///< all take rank 0's
  same_seed,  ///< they are equal already; verified by a checksum
};

/// How ranks synchronise buffers (BatchNorm's statistics) at the end of each synchronised backward.
enum class BufferPolicy {
  from_rank0,  ///< all take rank 0's
  average,     ///< all take the mean over ranks; those that hold no fractions, rank 0's
  none,        ///< every rank keeps its own
};

/// Options of both front ends. Ranks: the same on all.
struct DataParallelOptions {
  BucketCaps buckets = {};
  Strategy strategy = AllReduce{};
  InitialSync initial_sync = InitialSync::broadcast;
  BufferPolicy buffer_policy = BufferPolicy::from_rank0;
  /// Interval of the consistency check, in exchanges; 0 disables it. Each check compares one
  /// bucket's parameters between ranks, each bucket in turn, by a checksum that is sent with the
  /// exchange. Nothing is compared where a strategy lets replicas differ, or where
  /// backward_and_update() averages into one copy of the parameters.
  std::int64_t verify_every = 1;
  /// All ranks use one copy of the parameters and of the optimizer's state, and each rank updates a
  /// part. This needs less memory, and for large models less time. Requires a DistributedOptimizer
  /// around a FusedSgd (or another ElementwiseOptimizer), the strategy fp32, and the host backend.
  /// A value that one rank writes into a parameter changes it on all ranks. After
  /// backward_and_update() no rank holds the mean of the gradients.
  bool share_memory = false;
};

namespace detail {
class Reducer;
}

/// While it lives, backward() only accumulates gradients on this rank; the next synchronised
/// backward averages the sum. The moment of the backward counts, not that of the forward.
/// Without it a second backward before zero_grad() adds to the mean of the first, and the sum is
/// averaged. This is exact at full precision. Strategies with error feedback refuse it; other
/// strategies round or select the sum anew. Ranks: all alike.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(std::shared_ptr<detail::Reducer> reducer);
  ~NoSync();
  NoSync(NoSync&&) noexcept = default;
  NoSync& operator=(NoSync&&) = delete;
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  std::shared_ptr<detail::Reducer> reducer_;
};

}  // namespace lockstep
