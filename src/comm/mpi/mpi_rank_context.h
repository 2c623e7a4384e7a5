#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "comm/control/control.h"
#include "comm/control/failure.h"
#include "comm/mpi/mpi.h"
#include "comm/mpi/mpi_transport.h"
#include "comm/rank_context.h"

namespace lockstep::inline v0_2::mpi {

using control::Failure;

/// A tag that belongs to no group.
inline constexpr int notice_tag = 0;

/// A rank's message to all others that it has left or failed.
struct Notice {
  enum class Kind : std::int32_t { left, failed, timed_out };
  Kind kind;
  std::int32_t rank;
  std::int32_t rank_at_fault;  ///< of a failure, or -1
  bool by_program;             ///< Failure::by_program
  char text[2048];             ///< of a failure, ending with a zero
};

/// This rank's state among the processes of its MPI. It detects failures and ranks that leave, and
/// lives until MPI ends. Messages and groups are used only under a Use, or under the same lock
/// (hold()). Note [How a world over MPI fails] is in mpi_rank_context.cpp.
class MpiRankContext final : public detail::RankContext {
 public:
  explicit MpiRankContext(const Options& options);
  ~MpiRankContext() { stop_thread(); }

  int size() const { return transport_->size(); }
  MpiTransport& transport() { return *transport_; }
  const Options& options() const { return options_; }

  /// With its last group a rank leaves.
  void remove(detail::BackendCommunicator& group);

  /// Does what may go wrong with MPI; that is then the world's failure.
  void attempt(const std::function<void()>& call) noexcept;
  /// Also ends the world when a rank that the operation waits for has left. Throws that.
  void check(const detail::BackendRequest& operation) override;

  bool failed() const override { return failure_.recorded(); }
  /// Also tells all ranks.
  void fail(detail::FailureKind kind, const Failure& failure) noexcept override;
  /// Ends the world and tells all ranks. The caller raises the error itself.
  void fail(const Failure& failure) noexcept;
  /// Ends the world within poll(), which tells all ranks at its end.
  void fail_within(const Failure& failure) noexcept { record(failure, false); }

  /// Watches these ranks from here on, and tells them what ends the world. Called once.
  void watch(std::vector<control::Member> others);

  /// Tells the others that this rank takes part in nothing more.
  void leave() noexcept;
  /// The same, and waits until all have left, so that no message is under way when MPI ends.
  void part() noexcept;

 private:
  MpiRankContext(const Options& options, std::unique_ptr<MpiTransport> transport);

  bool advance() override;
  void record(detail::FailureKind kind, const Failure& failure) noexcept override;
  void spread() noexcept override;
  Failure failure() override { return failure_.failure(); }
  void expect_usable_thread() const override;

  /// Failures that other ranks have announced are known to all.
  void record(const Failure& failure, bool of_others) noexcept;
  void listen();
  void hear();
  void spread_unless_in_use() noexcept;
  void tell_all(const Notice& notice) noexcept;

  Options options_;
  std::unique_ptr<MpiTransport> transport_;
  bool main_thread_only_;  ///< and others must not call MPI
  detail::FailureRecord failure_;
  bool stopped_ = false;  ///< the others know of the failure, and MPI is used no more
  bool gone_ = false;     ///< this rank has left
  std::vector<bool> left_;
  Notice heard_{};
  std::optional<control::Control> control_;  ///< of a world of several hosts
};

}  // namespace lockstep::mpi
