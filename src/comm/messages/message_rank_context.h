#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/control/control.h"
#include "comm/messages/network.h"
#include "comm/messages/options.h"
#include "comm/rank_context.h"
#include "core/failure.h"
#include "core/system/crash_handler.h"

namespace lockstep::inline v0_2::messages {

using detail::Failure;

/// The tag of notices, which no group uses.
inline constexpr int notice_tag = 0;

/// The message of a rank to all others that it has left, or that the world has failed.
struct Notice {
  enum class Kind : std::int32_t { left, threw, failed };  ///< threw: left by an exception
  Kind kind;
  std::int32_t rank;
  std::int32_t rank_at_fault;  ///< of a failure, or -1
  Failure::Kind failure;       ///< its kind
  char text[2048];             ///< of a failure, null-terminated
};

/// The settings of control connections between the ranks of a world.
control::Settings control_settings(const Options& options, int rank, int size);

/// One rank's state in a world over a network. It detects failures and ranks that leave. It exists
/// until the end of the process, or of MPI. Network and groups are used only under a CallGuard or
/// its lock(). Note [How a world over messages fails] is in message_rank_context.cpp.
class MessageRankContext final : public detail::RankContext, private detail::CrashListener {
 public:
  MessageRankContext(const Options& options, std::unique_ptr<Network> network);
  ~MessageRankContext() {
    stop_listening();
    stop_thread();
  }

  int size() const { return network_->size(); }
  Network& network() { return *network_; }
  /// Whether a rank has sent the notice that it leaves.
  bool has_left(int rank) const { return left_[static_cast<std::size_t>(rank)].has_value(); }
  /// Whether that rank has left without an exception.
  bool left_well(int rank) const {
    return left_[static_cast<std::size_t>(rank)] == Notice::Kind::left;
  }
  const Options& options() const { return options_; }

  /// Whether the network may still read or write the memory of operations: over MPI for ever.
  bool may_use_memory() const { return !stopped_ || network_->ends_together(); }

  /// Removing the last group leaves the world.
  void remove(detail::BackendCommunicator& group);

  /// Ends the world if a rank that the operation waits for has left it.
  /// Throws: the failure of the world.
  void check(const detail::BackendRequest& operation) override;

  /// Also sends the failure to all ranks.
  void fail(const Failure& failure) noexcept override;
  /// The same with the failure's text as it is. The caller throws the error itself.
  void end_by(const Failure& failure) noexcept;

  /// Begins to watch these ranks over control connections, which also carry failures. Called once.
  /// host: the name of this host in error texts.
  void watch(std::vector<control::Member> others, const std::string& host);

  /// Sends all other ranks the notice that this rank has left.
  void leave() noexcept;
  /// The same, and waits until all ranks have left, so that no message is pending when the network
  /// ends. If a rank ends before it has sent that notice to this rank, the world fails.
  void leave_and_wait() noexcept;
  /// Ends the network if this rank and all others have left, or if the world has failed after this
  /// rank left. Returns whether that is so.
  bool end_if_left() noexcept;

 private:
  /// Ends the world over the control connections, if there are any.
  void on_crash(const detail::Crash& crash) noexcept override;
  bool advance() override;
  void record(const Failure& failure) noexcept override { record(failure, false); }
  void propagate_failure() noexcept override;
  Failure failure() override {
    propagate_failure();
    return RankContext::failure();
  }
  bool sleep_unless(detail::Condition& over, std::chrono::nanoseconds longest) override;
  void interrupt() noexcept override { network_->interrupt(); }
  void expect_usable_thread() const override { network_->expect_usable_thread(); }
  Failure failure_by(const std::exception& error) const override;

  /// Records a failure. is_agreed: all ranks have it.
  void record(const Failure& failure, bool is_agreed) noexcept;
  void receive_notice();
  /// Whether some rank has not sent the notice that it leaves.
  bool present() const;
  void end_network() noexcept;
  /// Makes all ranks raise the same failure, by notices.
  void agree_on_failure() noexcept;
  void await_answer() noexcept;
  void fail_without_notices() noexcept;
  void propagate_unless_in_use() noexcept;
  /// To the ranks from first to before end, without this one.
  void send(const Notice& notice, int first, int end) noexcept;

  Options options_;
  std::unique_ptr<Network> network_;
  bool stopped_ = false;   ///< the failure was sent to the others; the network is not used any more
  bool has_left_ = false;  ///< this rank has left
  std::vector<std::optional<Notice::Kind>> left_;  ///< the notice of each rank that has left
  Notice notice_{};
  std::optional<control::Control> control_;  ///< none over MPI on one host
};

}  // namespace lockstep::messages
