#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

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

/// What an exchange remembers between steps (residuals, factors), under parameter names.
using State = std::map<std::string, at::Tensor>;

/// How one bucket is exchanged: a small state machine, the same sequence on every rank.
class Exchange {
 public:
  virtual ~Exchange() = default;

  /// Stage 0 when the bucket is ready, then again each time the Work it returned is complete, until
  /// it returns a Work that is not pending: bucket.values() then holds the result on every rank.
  /// Must not block, and all ranks must go on, or throw, alike.
  virtual Work advance(Turn turn, Bucket& bucket, const Group& group) = 0;

  /// Bytes that this rank has given to collectives so far, in the form in which they travel; zero
  /// where they are not counted. For statistics.
  virtual std::uint64_t bytes_sent() const { return 0; }

  virtual State state() const { return {}; }
  virtual void load(const State&) {}
};

}  // namespace lockstep
