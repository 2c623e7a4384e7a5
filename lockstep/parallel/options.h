#pragma once

#include <cstdint>
#include <memory>

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
  average,     ///< all take the mean over ranks; those that hold no fractions, rank 0's
  none,        ///< every rank keeps its own
};

/// The same on every rank.
struct DataParallelOptions {
  BucketCaps buckets = {};
  Strategy strategy = AllReduce{};
  InitialSync initial_sync = InitialSync::broadcast;
  BufferPolicy buffer_policy = BufferPolicy::from_rank0;
  /// At every so many exchanges one bucket's parameters, each bucket in turn, are compared between
  /// ranks by a checksum that travels with the exchange; 0 never compares. Nor is anything compared
  /// where a strategy lets replicas differ, or where backward_and_update() averages
  /// into one copy of the parameters.
  std::int64_t verify_every = 1;
  /// One copy of the parameters, and of what the optimizer remembers of them, for all ranks, of
  /// which each updates a part: less memory, and for large models less time. For
  /// DistributedOptimizer around a FusedSgd (or another ElementwiseOptimizer), the strategy fp32,
  /// and ranks of one host. What one rank writes into a parameter, all ranks have; after
  /// backward_and_update() nobody has seen the mean of the gradients.
  bool share_memory = false;
};

namespace detail {
class Reducer;
}

/// While it lives, backward() only accumulates gradients on this rank; the next synchronised
/// backward averages the sum. The moment of the backward counts, not that of the forward.
/// Without it a second backward before zero_grad() adds to the mean of the first, and the sum is
/// averaged: exact at full precision, refused by strategies with error feedback, rounded or
/// selected anew by those without. Ranks: all alike.
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
