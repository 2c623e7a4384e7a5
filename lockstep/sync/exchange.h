#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "lockstep/comm/work.h"
#include "lockstep/group.h"
#include "lockstep/sync/bucket.h"

namespace lockstep {

/// What of a bucket is exchanged at a step.
enum class Content { nothing, gradients, parameters };

/// Which call of Exchange::advance this is.
struct Turn {
  std::int64_t step = 0;  ///< synchronised backwards before this one
  int stage = 0;          ///< calls for this bucket before this one, in this step
};

/// What an exchange remembers between steps, under parameter names. What one rank has not sent yet
/// ends in ".residual": resumed by another number of ranks, their sum over the ranks is kept. All
/// else (factors, counts, what was agreed on) is to be the same on every rank.
using State = std::map<std::string, at::Tensor>;

namespace detail {
/// Whether it is, by its name in a State, what one rank has not sent yet.
inline bool is_residual(std::string_view name) { return name.ends_with(".residual"); }
}  // namespace detail

/// How one bucket is exchanged: a small state machine, the same sequence on every rank.
class Exchange {
 public:
  virtual ~Exchange() = default;

  /// Stage 0 when the bucket is ready, then again each time the Work it returned is complete, until
  /// it returns a Work that is not pending: bucket.values() then holds the result on every rank.
  /// Must not block, and all ranks must go on, or throw, alike.
  virtual Work advance(Turn turn, Bucket& bucket, const Group& group) = 0;

  /// The optimizer is about to update the parameters of this bucket of gradients, which will be
  /// exchanged right afterwards, as part of the same step. Not called for gradients.
  virtual void before_update(std::int64_t /*step*/, const Bucket&) {}

  /// Whether all it ever does is one all_reduce. Where hosts hold several ranks, the group then
  /// divides it among them. Any other is asked to exchange the sums of each host's ranks: its group
  /// has one rank of every host, its bucket some of the parameters. ARCHITECTURE.md, "Strategies
  /// between hosts", says how.
  virtual bool is_all_reduce() const { return false; }

  /// Asked before the first advance and between steps. Residuals share memory with what it
  /// remembers, so that what is added to them is.
  virtual State state() const { return {}; }
  virtual void load(const State&) {}
};

}  // namespace lockstep
