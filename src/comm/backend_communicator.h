#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace lockstep::inline v0_2::detail {

class RankContext;

/// A rank's view of a group whose operations its RankContext polls and waits for. A backend derives
/// its communicator from it.
class BackendCommunicator : public Communicator,
                            public std::enable_shared_from_this<BackendCommunicator> {
 public:
  void fail(std::string_view cause) noexcept final;
  void fail_with(const control::Failure& failure) noexcept final;
  void look() final;

  virtual RankContext& context() const = 0;
  /// "all_reduce #17 (host) rank 2 of 4".
  std::string where(std::string_view label) const;

  // For the context, under a Use or the same lock.
  /// Does what can be done without blocking.
  virtual void poll() = 0;
  /// How much is still to be done: operations, or parts of them. Only a context with a progress
  /// thread asks.
  virtual std::size_t pending() const { return 0; }
  /// Hands over complete operations. Only a context that may have a progress thread asks; without
  /// one, poll() releases them.
  virtual void release(std::vector<std::shared_ptr<void>>& /*complete*/) {}
  /// Releases or hands over the pending operations, after the world has failed.
  virtual void drop(std::vector<std::shared_ptr<void>>& /*pending*/) {}

 protected:
  using Communicator::Communicator;
};

}  // namespace lockstep::detail
