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

/// This rank's state in a hierarchy. It makes a failure of the host's world one of all hosts' and
/// vice versa. Both worlds are used only under a Use, or under the same lock (hold()).
class HierarchicalRankContext final : public detail::RankContext {
 public:
  /// names: MPI's number of each rank of this host. The worlds are those of which all groups are
  /// made: over MPI, and of this host. fits: every rank of this host has cores of its own.
  HierarchicalRankContext(std::shared_ptr<Communicator> over_mpi,
                          std::shared_ptr<Communicator> of_host, std::vector<int> names,
                          std::chrono::milliseconds timeout, bool fits);
  ~HierarchicalRankContext() { stop_thread(); }

  const std::vector<int>& names() const { return names_; }

  /// Also checks the operations of all groups.
  void check(const detail::BackendRequest&) override;

  bool failed() const override { return failure_.recorded(); }
  /// Both worlds name this rank in the text.
  void fail(detail::FailureKind kind, const control::Failure& failure) noexcept override;
  /// Ends both worlds with what fn throws, and throws it again.
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
  std::vector<int> names_;
  unsigned polls_ = 0;
  std::mutex record_mutex_;
  detail::FailureRecord failure_;
};

}  // namespace lockstep::hierarchical
