#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/strategies.h"
#include "lockstep/strategy.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2 {

/// How ranks get equal parameters and buffers at construction.
enum class InitialSync {
  broadcast,  ///< all ranks receive rank 0's values
  same_seed,  ///< the values are equal already; a checksum verifies this
};

/// How ranks synchronise buffers (BatchNorm's statistics). They exchange them in each synchronised
/// backward. A DistributedDataParallel writes the received values at its end, or, while the graph
/// of another forward of the wrapper may still run, when that has run or ends. Its next forward, a
/// checkpoint and state_dict() write them before. A DistributedOptimizer without one writes them in
/// step(). A rank of weight 0 does not count: rank 0 means the first rank of another weight then.
enum class BufferPolicy {
  from_rank0,  ///< all ranks receive rank 0's values
  average,     ///< floating-point buffers become the mean over ranks, others rank 0's values
  none,        ///< every rank keeps its own values
};

/// The default of DataParallelOptions::buckets: BucketCaps{}, or the size in LOCKSTEP_BUCKET_MIB.
/// The first bucket is then no larger than 1 MiB. init() raises InvalidArgument for a variable that
/// cannot be used.
BucketCaps default_buckets();

/// A strategy for some parameters.
struct ParameterStrategy {
  /// A pattern of names, as of files in a shell: `*` matches any characters, `?` one character, and
  /// `[ab]` one of these.
  std::string parameters;
  Strategy strategy;
};

/// Options of both front ends. Ranks: the same on all.
struct DataParallelOptions {
  BucketCaps buckets = default_buckets();
  /// Strategy of all parameters that no entry of `strategies` matches.
  Strategy strategy = AllReduce{};
  /// Strategies of the parameters whose names match a pattern. The first matching entry counts. A
  /// bucket has parameters of one entry only. Example: {{"embedding.*", TopK{.ratio = 0.01}}}.
  /// A pattern that matches no parameter is an InvalidArgument.
  std::vector<ParameterStrategy> strategies = {};
  InitialSync initial_sync = InitialSync::broadcast;
  BufferPolicy buffer_policy = BufferPolicy::from_rank0;
  /// Interval of the consistency check in exchanges; 0 disables the check. Each check compares the
  /// parameters of one bucket between ranks, by a checksum that is sent with the exchange. Buckets
  /// are checked in turn. Frozen parameters are in none: nothing compares them after the
  /// construction. There is no check if the strategy lets replicas differ, or if
  /// backward_and_update() updates a shared copy of the parameters. Default: 1 on the CPU, 100 on a
  /// device, for which the check waits.
  std::optional<std::int64_t> verify_every = {};
  /// Requires a DistributedOptimizer, alone or over a DistributedDataParallel, with torch::optim's
  /// SGD, Adam, AdamW, RMSprop or Adagrad, or a fused form of them, and a group on the CPU.
  /// Shard::optimizer requires a strategy that averages every gradient, Shard::gradients the
  /// strategy fp32, fp16 or bf16. Parameters with sparse gradients, and frozen ones, are updated by
  /// every rank. docs/guides/memory.md has the bytes of each option.
  Shard shard = Shard::none;
  /// The ranks of a host share one copy of the parameters and of the optimizer's state, and each
  /// rank updates a part of it. This needs less memory and, for large models on one host, less
  /// time. Requires a DistributedOptimizer, alone or over a DistributedDataParallel, with
  /// torch::optim's SGD, Adam, AdamW, RMSprop or Adagrad, a fused form of them, or another
  /// ElementwiseOptimizer. The strategy must be fp32, and the backend host or hierarchical; device
  /// groups are refused. A value that one rank writes into a parameter changes on all ranks of its
  /// host. On one host, .grad() is not the mean over ranks after backward_and_update(). Includes
  /// Shard::optimizer; Shard::gradients is refused. Default: LOCKSTEP_SHARE_MEMORY, else false.
  std::optional<bool> share_memory = {};
  /// Names of the parameters with sparse gradients, beside the weights of Embedding and
  /// EmbeddingBag with sparse = true, which need no entry. For programs that call
  /// torch::nn::functional::embedding(). Every strategy averages sparse gradients exactly, in every
  /// backward.
  std::vector<std::string> sparse_gradients = {};
  /// The wrapper averages the gradients of the parameters that its optimizer updates, and no
  /// others. For several DistributedOptimizers over one model, each with its own parameters. Every
  /// one of them synchronises the buffers, and compares and copies all parameters when it is made.
  bool optimized_only = false;
  /// Tests this rank's own gradients for NaN and Inf before they are averaged. If one is found, all
  /// ranks raise InvalidArgument with the parameter and the rank: in backward(), or in step() where
  /// that exchanges the gradients or none are exchanged. The gradient counts as zero in that
  /// exchange, so no residual and no other state of a strategy has it. Call zero_grad() and go on,
  /// or end. With a strategy that exchanges no gradients, every step has a small collective. On a
  /// device, backward() waits for the device. Not for use with a GradScaler, which causes Inf on
  /// purpose and skips such steps itself.
  bool check_finite = false;
};

namespace detail {
class Reducer;
}

/// While a NoSync exists, backward() only accumulates gradients on this rank. The next synchronised
/// backward averages the accumulated sum. The time of the backward matters, not that of the
/// forward. Without NoSync, a second backward before zero_grad() adds to the mean of the first, and
/// the sum is averaged again. That is exact at full precision. Strategies with error feedback raise
/// InvalidArgument for it; other strategies round or select the sum again.
/// Ranks: all must use NoSync for the same backwards.
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
