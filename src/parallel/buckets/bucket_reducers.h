#pragma once

#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_set>
#include <vector>

#include "comm/operation.h"
#include "device/comm_stream.h"
#include "lockstep/exchange.h"
#include "lockstep/group.h"
#include "lockstep/model_view.h"
#include "parallel/buckets/bucket_memory.h"
#include "parallel/buckets/bucket_plan.h"
#include "sync/between_hosts.h"

namespace lockstep::inline v0_2::detail {

/// The stream on which a group exchanges buckets; none for a group on the CPU.
std::optional<device::CommStream> comm_stream_of(const Group& group);

/// The streams that have written gradients since the begin of a backward. Autograd may run parts of
/// one backward on different streams.
using GradientStreams = std::unordered_set<c10::Stream>;

/// Makes later work of `later` wait for the work that these streams have now.
void order(const GradientStreams& earlier, const c10::Stream& later);

/// Makes the group's stream the current one until the end of the scope. No effect for a group on
/// the CPU.
class CommStreamScope {
 public:
  explicit CommStreamScope(const std::optional<device::CommStream>& comm);
  /// The same. Work in the scope comes after the work that the current stream and the streams of
  /// the gradients have at its begin.
  CommStreamScope(const std::optional<device::CommStream>& comm, const GradientStreams& gradients);
  /// Makes later work of the stream that was current before the scope wait for the work of the
  /// scope so far.
  void block_caller() const;

 private:
  std::optional<c10::Stream> caller_;
  std::optional<c10::StreamGuard> guard_;
};

/// The result of an exchange of gradients on each rank.
enum class Product : std::uint8_t {
  mean,  ///< the whole mean
  part,  ///< its part of the mean where the bucket allows that, else the whole
  none   ///< nothing: the update reads the gradients of all ranks
};

/// A gradient bucket with its strategy's running state.
struct BucketReducer {
  Bucket bucket;
  std::unique_ptr<Exchange> exchange;
  std::unique_ptr<Bucket> parameters = {};  ///< allocated when parameters are first exchanged
  /// One residual per slice; undefined where another rank keeps it. Empty without error feedback.
  std::vector<at::Tensor> residuals = {};
  std::size_t strategy = 0;           ///< index of its strategy
  std::size_t index_in_strategy = 0;  ///< among the buckets of its strategy
  /// This rank's part of the mean; null if each exchange gives every rank the whole.
  std::unique_ptr<GradientShard> shard = {};
  bool is_optimized = false;        ///< the attached optimizer updates all parameters of the bucket
  int counted_stage = 0;            ///< stage whose collective counts the step's dense bytes
  std::uint64_t skipped_bytes = 0;  ///< dense bytes of the steps since the last exchange

  bool has_residual() const { return !residuals.empty(); }
};

class BucketReducers;

/// The exchanges of all buckets in one step. Every rank issues their collectives in the same order,
/// which depends only on the positions of the buckets, never on their readiness:
///
///     slot p (0 ≤ p < buckets)   begin the exchange of the bucket at position p;
///                                advance the unfinished exchanges at p − 2, p − 4, …
///     after the last slot        advance all unfinished exchanges in turn
///
/// To advance an exchange is to issue its next collective. Later stages thus overlap with the
/// backward, and two buckets are in flight while a rank waits for a stage.
class ExchangeRound {
 public:
  /// Exchanges the buckets whose target at this step is target: gradients or parameters.
  ExchangeRound(BucketReducers& reducers, SyncTarget target, std::int64_t step);

  /// The position of the next bucket to begin; the number of buckets when all have begun.
  std::size_t next() const { return entries_.size(); }
  /// Whether that bucket may begin in a backward: all collectives before it have been issued, and
  /// no other group has operations on the device. Those of a batch norm might come before the
  /// bucket on some ranks only. Issues collectives that need no waiting.
  bool may_begin();
  /// Issues all collectives before that bucket, and waits for earlier stages.
  void wait_to_begin() { run_slot(Blocking::yes); }
  /// Begins that bucket's exchange, if this step has one.
  void begin_next();
  /// Number of buckets whose exchange has begun.
  int begun() const { return begun_; }

  /// Begins the remaining exchanges and completes all. Returns the first InvalidArgument of an
  /// exchange, which is the same on every rank, or null.
  std::exception_ptr complete();
  /// Ends the exchanges that have begun, after a failure of the world.
  void abandon() { entries_.clear(); }

 private:
  enum class Blocking : bool { no, yes };

  struct Entry {
    ExchangeTask task = {};
    Work work = {};
    int stage = 0;
  };

  bool run_slot(Blocking blocking);
  void advance(std::size_t position);
  bool advances_in(std::size_t slot, std::size_t position) const;

  BucketReducers& reducers_;
  SyncTarget target_;
  std::int64_t step_;
  std::vector<Entry> entries_;    ///< by position
  std::size_t next_in_slot_ = 0;  ///< position that the current slot advances next
  int begun_ = 0;
  std::exception_ptr error_;
};

/// The buckets of a model and the order of their exchanges, which is the same on all ranks.
class BucketReducers {
 public:
  /// Parameters: dense, and the same on every rank. owner is the source of the collectives. parts:
  /// where ranks can receive their parts of means; else all means are whole.
  /// Ranks: all of the group.
  /// Throws: CommError when memory is short.
  BucketReducers(std::span<const NamedTensor> parameters, const Group& group, BucketCaps caps,
                 ParameterStrategies strategies, const Source& owner = {},
                 std::optional<PartMemory> parts = {});

  std::size_t size() const { return reducers_.size(); }
  BucketReducer& operator[](std::size_t index) { return reducers_[index]; }
  std::span<BucketReducer> all() { return reducers_; }
  std::span<const BucketReducer> all() const { return reducers_; }

  /// The index of the bucket at a position of the exchange order, and the position of an index.
  std::size_t index_at(std::size_t position) const { return order_[position]; }
  std::size_t position(std::size_t index) const { return positions_[index]; }

  /// Sets the exchange order to the order in which rank 0's buckets became ready. Only the first
  /// call has an effect. ready: indices, maybe not all. Ranks: all of the group.
  void set_order_once(std::span<const std::size_t> ready);

  /// The target of a bucket at a step, and whether a step has that target for any bucket.
  SyncTarget target(std::size_t index, std::int64_t step) const {
    const auto& reducer = reducers_[index];
    return strategies_[reducer.strategy].target(step, reducer.index_in_strategy,
                                                buckets_of_strategy_[reducer.strategy]);
  }
  bool exchanges(SyncTarget target, std::int64_t step) const;
  /// Whether every step exchanges all gradients, and none exchanges parameters.
  bool exchanges_every_gradient() const { return strategies_.exchanges_every_gradient(); }
  /// Whether every strategy, and that of a bucket, takes weights.
  bool take_weights() const { return strategies_.take_weights(); }
  bool takes_weights(std::size_t index) const {
    return strategies_[reducers_[index].strategy].takes_weights();
  }
  const std::optional<device::CommStream>& comm_stream() const { return comm_stream_; }

  /// The product of later exchanges. Ranks: all.
  void set_product(Product product) { product_ = product; }
  Product product() const { return product_; }
  /// The product of a bucket's exchange: mean or part.
  Product product(std::size_t index) const {
    const auto& reducer = reducers_[index];
    const bool has_part = reducer.shard != nullptr &&
                          (memory_ || (product_ == Product::part && reducer.is_optimized));
    return has_part ? Product::part : Product::mean;
  }
  /// Determines BucketReducer::is_optimized.
  void set_optimized(const IsOptimized& is_optimized);
  /// Whether the bucket's exchange is one all_reduce.
  bool is_all_reduce(std::size_t index) const {
    return reducers_[index].exchange->is_all_reduce() && product(index) == Product::mean;
  }
  /// Call before a backward changes the buckets.
  void keep_parts();
  /// Discards the parts of means that are stored in the buckets.
  void discard_parts();

  /// Whether buckets have memory during their exchange only: TransientMemory. begin_use() gives a
  /// bucket this memory, when its exchange may begin; end_use() ends its use. No effect otherwise.
  bool is_transient() const { return memory_.has_value(); }
  void begin_use(std::size_t index);
  void end_use(std::size_t index) {
    if (memory_) memory_->end_use(reducers_[index].bucket);
  }
  /// Whether the bucket is to be exchanged in the memory of a gradient, by Bucket::move_to().
  bool takes_gradient(std::size_t index) const { return memory_ && memory_->takes_gradient(index); }

  /// Calls before_update() of the exchanges that exchange parameters at this step.
  void before_update(std::int64_t step);
  /// Adds the bytes of the buckets that the step did not exchange to their skipped_bytes.
  void count_skipped(std::int64_t step);
  /// Exchanges the parameters of the buckets whose target at this step is parameters.
  /// Ranks: all of the group.
  void exchange_parameters(std::int64_t step);
  /// Every rank's parameters = their mean over ranks.
  /// Ranks: all of the group.
  void average_parameters();

  /// The source of a bucket's collectives.
  Source source(std::size_t index, SyncTarget target) const;

  /// State of the exchanges, by parameter names.
  State state() const;
  void load(const State& state);

 private:
  friend class ExchangeRound;

  BucketReducer make(Bucket bucket, std::size_t strategy);
  Work advance(std::size_t index, SyncTarget target, ExchangeTask& task, int stage);
  void pack_parameters(BucketReducer& reducer);

  Group group_;
  std::optional<device::CommStream> comm_stream_;
  Source owner_;
  ParameterStrategies strategies_;
  std::vector<std::size_t> buckets_of_strategy_;  ///< number of buckets, by strategy
  std::optional<HostGroups> hosts_;               ///< set once an exchange runs between hosts
  std::vector<BucketReducer> reducers_;
  std::vector<std::size_t> order_;      ///< buckets by position
  std::vector<std::size_t> positions_;  ///< positions by bucket
  bool order_is_set_ = false;
  Product product_ = Product::mean;
  std::optional<TransientMemory> memory_;  ///< of PartMemory::own
};

}  // namespace lockstep::detail
