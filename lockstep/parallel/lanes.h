#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/group.h"
#include "lockstep/parallel/bucket_plan.h"
#include "lockstep/parallel/model_state.h"
#include "lockstep/sync/bucket.h"
#include "lockstep/sync/exchange.h"
#include "lockstep/sync/host_groups.h"
#include "lockstep/sync/strategy.h"

namespace lockstep::detail {

/// One bucket and how it is exchanged.
struct Lane {
  Bucket bucket;  ///< of gradients
  std::unique_ptr<Exchange> exchange;
  std::unique_ptr<Bucket> parameters = {};  ///< made when the parameters are exchanged first
  /// A slice's each, where the exchange keeps them; undefined for those that another rank keeps.
  std::vector<at::Tensor> residuals = {};
  int sends_from = 0;          ///< the stage at which a step's values are sent first
  std::uint64_t not_sent = 0;  ///< bytes of turns at which nothing was exchanged

  bool has_residual() const { return !residuals.empty(); }
};

/// The buckets of a model, exchanged in an order that all ranks share: each begins at its position,
/// and further stages come round by round.
class Lanes {
 public:
  /// Parameters: dense, and the same on every rank. owner says whose collectives these are.
  /// Ranks: all of the group.
  /// Throws: CommError when the machine has not the memory.
  Lanes(std::span<const NamedTensor> parameters, const Group& group, BucketCaps caps,
        const Strategy& strategy, const Source& owner = {});

  std::size_t size() const { return lanes_.size(); }
  Lane& operator[](std::size_t lane) { return lanes_[lane]; }
  std::span<const Lane> all() const { return lanes_; }

  /// The lane whose bucket leaves at a position, and where a lane's does.
  std::size_t at(std::size_t position) const { return order_[position]; }
  std::size_t position(std::size_t lane) const { return positions_[lane]; }

  /// Takes the order in which rank 0's buckets became ready, once: lanes, maybe not all.
  /// Ranks: all of the group.
  void learn_order(std::span<const std::size_t> ready);

  Content content(std::size_t lane, std::int64_t step) const {
    return strategy_.content(step, lane, size());
  }
  /// Whether some bucket's are.
  bool exchanges(Content content, std::int64_t step) const;

  /// Begins the exchange of the gradients in a bucket.
  Work begin(std::size_t lane, std::int64_t step);
  /// Completes what begin() returned, by position. Returns what an exchange refused, if one did:
  /// the same on every rank, and all others are complete.
  std::exception_ptr complete(std::span<Work> works, std::int64_t step) {
    return complete(works, step, &of_gradients);
  }

  /// Parameters are about to be updated: tells those exchanges whose buckets' turn comes then.
  void before_update(std::int64_t step);
  /// Buckets of which the step has exchanged nothing.
  void count_left_out(std::int64_t step);
  /// Exchanges the parameters of those buckets whose turn it is.
  /// Ranks: all of the group.
  void exchange_parameters(std::int64_t step);
  /// Every rank's parameters = their mean over ranks.
  /// Ranks: all of the group.
  void average_parameters();

  /// What the exchanges remember, by parameter names.
  State state() const;
  void load(const State& state);

 private:
  static Bucket& of_gradients(Lane& lane) { return lane.bucket; }
  static Bucket& of_parameters(Lane& lane) { return *lane.parameters; }
  /// Makes the bucket's exchange, and what it keeps.
  Lane lane_of(Bucket bucket);
  Source source(std::size_t lane, const Bucket& bucket) const;
  Work advance(std::size_t lane, Turn turn, Bucket& bucket);
  std::exception_ptr complete(std::span<Work> works, std::int64_t step,
                              Bucket& (*bucket_of)(Lane&));
  void pack_parameters(Lane& lane);

  Group group_;
  Source owner_;
  Strategy strategy_;
  std::optional<HostGroups> hosts_;  ///< once a bucket is exchanged between them
  std::vector<Lane> lanes_;
  std::vector<std::size_t> order_;      ///< lanes by position
  std::vector<std::size_t> positions_;  ///< positions by lane
  bool order_known_ = false;
};

}  // namespace lockstep::detail
