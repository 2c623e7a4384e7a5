#pragma once

#include <memory>

#include "lockstep/group.h"

namespace lockstep::inline v0_2::detail {

/// The wrappers (DistributedDataParallel, DistributedOptimizer) of one group on this rank. All
/// their collectives are part of the group's single order. In a backward that reaches several
/// wrappers, the first wrapper therefore exchanges buckets as they become ready, and the others
/// when the backward ends. All ranks must reach the same wrapper first. Not thread-safe.
class GroupWrappers {
 public:
  /// The instance that all wrappers of the group's communicator share.
  static std::shared_ptr<GroupWrappers> of(const Group& group);

  /// Whether this exchange may begin buckets during the backward. True for the first exchange until
  /// its end().
  bool begin(const void* exchange);
  void end(const void* exchange);

 private:
  const void* first_ = nullptr;
};

}  // namespace lockstep::detail
