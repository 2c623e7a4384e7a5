#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/tasks/task_communicator.h"

namespace lockstep::inline v0_2::hierarchical {

/// One rank's state in a hierarchical world, composed of the host's world and the world over the
/// network.
class HierarchicalRankContext final : public detail::ComposedRankContext {
 public:
  /// over_network and of_host are the world over the network and the world of this host, from which
  /// all groups are split. fits: every rank of this host has cores of its own.
  HierarchicalRankContext(std::shared_ptr<Communicator> over_network,
                          std::shared_ptr<Communicator> of_host, std::chrono::milliseconds timeout,
                          bool fits);
  ~HierarchicalRankContext() { stop_thread(); }

 private:
  bool advance() override;
  /// That of the world over the network, in which the ranks of all hosts agree on the first.
  detail::Failure failure() override;

  unsigned polls_ = 0;
};

}  // namespace lockstep::hierarchical
