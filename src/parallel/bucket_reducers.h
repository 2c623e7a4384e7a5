#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/operation.h"
#include "lockstep/distributed_optimizer.h"
#include "lockstep/exchange.h"
#include "lockstep/group.h"
#include "lockstep/strategy.h"
#include "parallel/bucket_plan.h"
#include "parallel/replicated_model.h"
#include "sync/between_hosts.h"

namespace lockstep::inline v0_2::detail {

/// A gradient bucket with its strategy's running state.
struct BucketReducer {
  Bucket bucket;
  std::unique_ptr<Exchange> exchange;
  std::unique_ptr<Bucket> parameters = {};  ///< made when parameters are first exchanged
  /// One tensor a slice, where the exchange keeps residuals; undefined where another rank keeps it.
  std::vector<at::Tensor> residuals = {};
  bool is_single = false;      ///< the exchange is one all_reduce
  int sends_from = 0;          ///< the stage that sends the values of a step first
  std::uint64_t not_sent = 0;  ///< bytes of the steps that exchanged nothing

  bool has_residual() const { return !residuals.empty(); }
};

class BucketReducers;

/// The exchanges of all buckets in one step. Every rank issues their collectives in one order,
/// which depends on positions only, never on readiness. The bucket at position p begins, then each
/// exchange at p − 2, p − 4, … that has not ended goes on by one collective. Then the bucket at p +
/// 1 begins. After the last bucket all exchanges go on in turn.
/// Later stages thus run during the backward, and while a rank waits for one stage, two buckets are
/// under way.
class ExchangeRound {
 public:
  /// gradients or parameters: what of the buckets is exchanged, where the strategy exchanges it.
  ExchangeRound(BucketReducers& reducers, SyncTarget target, std::int64_t step);

  /// The position of the bucket that begins next; the number of buckets when all have begun.
  std::size_t next() const { return entries_.size(); }
  /// Whether that bucket may begin now: all that comes before it has been issued. Issues what it
  /// can without waiting.
  bool may_begin() { return run_slot(Blocking::no); }
  /// Issues all that comes before that bucket, and waits where it must.
  void wait_to_begin() { run_slot(Blocking::yes); }
  /// Begins it, if the strategy exchanges it in this step.
  void begin_next();
  /// Collectives of buckets that were begun.
  int begun() const { return begun_; }

  /// Begins the remaining exchanges and completes all. Returns the error of an exchange that
  /// refused, if one did: the same on every rank, and all other exchanges are complete.
  std::exception_ptr complete();

 private:
  enum class Blocking : bool { no, yes };

  struct Entry {
    ExchangeTask task = {};
    Work work = {};
    int stage = 0;
  };

  bool run_slot(Blocking blocking);
  void resume(std::size_t position);
  bool goes_on(std::size_t position, std::size_t slot) const;

  BucketReducers& reducers_;
  SyncTarget target_;
  std::int64_t step_;
  std::vector<Entry> entries_;  ///< by position
  std::size_t resumed_ = 0;     ///< positions that the present slot has passed
  int begun_ = 0;
  std::exception_ptr refused_;
};

/// The buckets of a model, in an order that all ranks share.
class BucketReducers {
 public:
  /// Parameters: dense, and the same on every rank. owner says whose collectives these are.
  /// Ranks: all of the group.
  /// Throws: CommError when the machine has not the memory.
  BucketReducers(std::span<const NamedTensor> parameters, const Group& group, BucketCaps caps,
                 const Strategy& strategy, const Source& owner = {});

  std::size_t size() const { return reducers_.size(); }
  BucketReducer& operator[](std::size_t index) { return reducers_[index]; }
  std::span<const BucketReducer> all() const { return reducers_; }

  /// The bucket at a position of the order, and a bucket's position.
  std::size_t at(std::size_t position) const { return order_[position]; }
  std::size_t position(std::size_t index) const { return positions_[index]; }

  /// Takes the order in which rank 0's buckets became ready, once: indices, maybe not all.
  /// Ranks: all of the group.
  void learn_order(std::span<const std::size_t> ready);

  /// The values of a bucket that a step exchanges, and whether a step exchanges those of any
  /// bucket.
  SyncTarget target(std::size_t index, std::int64_t step) const {
    return strategy_.target(step, index, size());
  }
  bool exchanges(SyncTarget target, std::int64_t step) const;

  /// Before the optimizer's step: informs the exchanges whose parameters come next.
  void before_update(std::int64_t step);
  /// Counts the buckets of which the step has exchanged nothing.
  void count_left_out(std::int64_t step);
  /// Exchanges the parameters of those buckets whose turn it is.
  /// Ranks: all of the group.
  void exchange_parameters(std::int64_t step);
  /// Every rank's parameters = their mean over ranks.
  /// Ranks: all of the group.
  void average_parameters();

  /// State of the exchanges, by parameter names.
  State state() const;
  void load(const State& state);

 private:
  friend class ExchangeRound;

  BucketReducer make(Bucket bucket);
  Source source(std::size_t index, SyncTarget target) const;
  Work advance(std::size_t index, SyncTarget target, ExchangeTask& task, int stage);
  void pack_parameters(BucketReducer& reducer);

  Group group_;
  Source owner_;
  Strategy strategy_;
  std::optional<HostGroups> hosts_;  ///< once a bucket is exchanged between them
  std::vector<BucketReducer> reducers_;
  std::vector<std::size_t> order_;      ///< buckets by position
  std::vector<std::size_t> positions_;  ///< positions by bucket
  bool order_known_ = false;
};

}  // namespace lockstep::detail
