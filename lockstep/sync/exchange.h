#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "lockstep/group.h"
#include "lockstep/sync/bucket.h"
#include "lockstep/sync/exchange_task.h"

namespace lockstep {

/// What of a bucket is exchanged at a step.
enum class SyncTarget { none, gradients, parameters };

/// What an exchange remembers between steps, under parameter names. What one rank has not sent yet
/// ends in ".residual": resumed by another number of ranks, their sum over the ranks is kept. All
/// else (factors, counts, what was agreed on) is to be the same on every rank.
using State = std::map<std::string, at::Tensor>;

namespace detail {
/// Whether it is, by its name in a State, what one rank has not sent yet.
inline bool is_residual(std::string_view name) { return name.ends_with(".residual"); }
}  // namespace detail

/// How one bucket is exchanged, and what that remembers from step to step.
class Exchange {
 public:
  virtual ~Exchange() = default;

  /// The exchange of a step, as a coroutine: it begins when the bucket is ready, and when it ends,
  /// bucket.values() holds the result on every rank. step counts the exchanges before this one; of
  /// a DistributedOptimizer, its steps. Bucket and group outlive the coroutine.
  /// Ranks: all of the group. All must issue the same collectives, or throw, alike.
  virtual ExchangeTask exchange(std::int64_t step, Bucket& bucket, const Group& group) = 0;

  /// The optimizer is about to update the parameters of this bucket of gradients, which will be
  /// exchanged right afterwards, as part of the same step. Not called for gradients.
  virtual void before_update(std::int64_t /*step*/, const Bucket&) {}

  /// Whether all it ever does is one all_reduce. Where hosts hold several ranks, the group then
  /// divides it among them. Any other is asked to exchange the sums of each host's ranks: its group
  /// has one rank of every host, its bucket some of the parameters. ARCHITECTURE.md, "Strategies
  /// between hosts", says how.
  virtual bool is_all_reduce() const { return false; }

  /// Asked before the first exchange and between steps. Residuals share memory with what it
  /// remembers, so that what is added to them is.
  virtual State state() const { return {}; }
  virtual void load(const State&) {}
};

}  // namespace lockstep
