#pragma once

#include <memory>

#include "lockstep/group.h"

namespace lockstep::inline v0_2::detail {

/// The wrappers (DistributedDataParallel, DistributedOptimizer) of one group on this rank. Their
/// collectives share the group's order. In a backward that reaches several wrappers, the first one
/// therefore exchanges its buckets as they become ready, and the others when the backward ends.
/// Ranks may differ in the buckets that are ready first, but not in the wrapper that is reached
/// first. One rank's wrappers of a group are used by one thread at a time.
class GroupWrappers {
 public:
  /// The one of this group's communicator.
  static std::shared_ptr<GroupWrappers> of(const Group& group);

  /// Whether this exchange may begin at once. The first one may, until it ends.
  bool begin(const void* exchange);
  void end(const void* exchange);

 private:
  const void* first_ = nullptr;
};

}  // namespace lockstep::detail
