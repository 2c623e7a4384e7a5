#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lockstep/group.h"
#include "parallel/agree.h"

namespace lockstep::inline v0_2::detail {

class Reducer;

/// The wrappers (DistributedDataParallel, DistributedOptimizer) of one group on this rank. All
/// their collectives are part of the group's single order. In a backward that reaches several
/// wrappers, the first wrapper therefore exchanges buckets as they become ready, and the others
/// when the backward ends.
///
/// Members are the wrappers without a DistributedOptimizer. If there are several, a rank whose
/// backward does not reach one takes part in its exchange without gradients:
///
///     first hook            begin an all_reduce of the number of the member that is reached first
///     further hooks         begin that member's ready buckets, if all ranks reached it first
///     end of the backward   complete its exchange; all_reduce which members each rank has reached;
///                           complete the exchanges of the others, in order of number
///
/// All wrappers of the group share one (per_group()). Not thread-safe.
class GroupWrappers {
 public:
  explicit GroupWrappers(const Group& group) : group_(group.host()), agreement_(group) {}

  /// Adds the wrapper, unless it is a member.
  void add_member(Reducer& wrapper);
  void remove_member(const Reducer& wrapper);

  /// Registers an exchange, which is the first one if no other is registered, until its end().
  void begin(const void* exchange);
  void end(const void* exchange);
  /// Call when a backward reaches a member, after begin(). Ranks: all of the group.
  void reach(Reducer& member, const void* exchange);
  /// Whether this exchange may begin buckets during the backward.
  bool may_begin(const void* exchange);

  /// Completes the exchange of a wrapper, and those of all members that the backward of some rank
  /// has reached. Call at the end of a backward. Ranks: all of the group.
  /// Throws: InvalidArgument, on every rank, if no member was reached on all ranks.
  void finish(Reducer& wrapper);

 private:
  bool is_one_of_several(const Reducer& wrapper) const;
  void end_agreement();
  [[noreturn]] void refuse(const at::Tensor& reached_by_some) const;

  Group group_;
  std::vector<Reducer*> members_;    ///< in order of number
  const void* first_ = nullptr;      ///< the first exchange
  Reducer* first_member_ = nullptr;  ///< its wrapper, if that is one of several members
  MaxOverRanks<Compared<std::uint64_t>> agreement_;  ///< on that wrapper's number
  bool is_agreed_ = true;                            ///< the first exchange may begin buckets
};

}  // namespace lockstep::detail
