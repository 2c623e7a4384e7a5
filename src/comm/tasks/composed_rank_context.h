#pragma once

#include <exception>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/rank_context.h"

namespace lockstep::inline v0_2::detail {

/// One rank's state in a world whose operations run in other worlds of the same ranks, or of some
/// of them. A failure of one of these worlds ends all of them. They are used only under a CallGuard
/// of this context or its lock().
class ComposedRankContext : public RankContext {
 public:
  /// The worlds add this rank to the text.
  void fail(const Failure& failure) noexcept override;
  /// Checks the operations of all groups.
  void check(const BackendRequest&) override {
    attempt([&] { check_requests(); });
  }

 protected:
  /// worlds: in the order in which they get a failure. advance_worlds() goes in reverse order.
  ComposedRankContext(const Settings& settings, std::vector<std::shared_ptr<Communicator>> worlds)
      : RankContext(settings), worlds_(std::move(worlds)) {}

  const std::vector<std::shared_ptr<Communicator>>& worlds() const { return worlds_; }
  /// Throws: as TaskCommunicator::check_requests().
  void check_requests();
  /// Throws: the failure of the first world that has failed.
  void advance_worlds() {
    for (auto world = worlds_.rbegin(); world != worlds_.rend(); ++world) (*world)->make_progress();
  }

 private:
  void record(const Failure& failure) noexcept override;

  std::vector<std::shared_ptr<Communicator>> worlds_;
  std::mutex record_mutex_;
};

}  // namespace lockstep::detail
