#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "comm/rank_context.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::hierarchical {

/// One rank's state in a hierarchical world. A failure of the host's world ends the world over MPI,
/// and vice versa. Both worlds are used only under a CallGuard or its lock().
class HierarchicalRankContext final : public detail::RankContext {
 public:
  /// over_mpi and of_host are the world over MPI and the world of this host, from which all groups
  /// are split. world_ranks: the world rank of each rank of this host. fits: every rank of this
  /// host has cores of its own.
  HierarchicalRankContext(std::shared_ptr<Communicator> over_mpi,
                          std::shared_ptr<Communicator> of_host, std::vector<int> world_ranks,
                          std::chrono::milliseconds timeout, bool fits);
  ~HierarchicalRankContext() { stop_thread(); }

  const std::vector<int>& world_ranks() const { return world_ranks_; }

  /// Checks the operations of all groups.
  void check(const detail::BackendRequest&) override;

  bool failed() const override { return failure_.recorded(); }
  /// Both worlds add this rank to the text.
  void fail(detail::FailureKind kind, const control::Failure& failure) noexcept override;
  /// Runs fn. A CommError ends both worlds and is rethrown.
  template <class Fn>
  auto or_fail(const Fn& fn) {
    try {
      return fn();
    } catch (const CommError& error) {
      record(error);
      throw;
    }
  }

 private:
  bool advance() override;
  void record(detail::FailureKind kind, const control::Failure& failure) noexcept override;
  control::Failure failure() override { return failure_.failure(); }

  void record(const std::exception& error) noexcept;
  template <class Fn>
  void attempt(const Fn& fn) noexcept;

  std::shared_ptr<Communicator> over_mpi_;
  std::shared_ptr<Communicator> of_host_;
  std::vector<int> world_ranks_;
  unsigned polls_ = 0;
  std::mutex record_mutex_;
  detail::FailureRecord failure_;
};

}  // namespace lockstep::hierarchical
