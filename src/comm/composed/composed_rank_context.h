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
  bool failed() const override { return failure_.recorded(); }
  /// The worlds add this rank to the text.
  void fail(const Failure& failure) noexcept override;
  /// Checks the operations of all groups.
  void check(const BackendRequest&) override {
    attempt([&] { check_requests(); });
  }
  /// Called by an operation that has advanced.
  void set_progressed() { progressed_ = true; }
  /// Runs fn. An exception of type Caught ends all worlds and is rethrown.
  template <class Caught, class Fn>
  auto or_fail(const Fn& fn) {
    try {
      return fn();
    } catch (const Caught& error) {
      record_exception(error);
      throw;
    }
  }

 protected:
  /// worlds: in the order in which they get a failure. advance_worlds() goes in reverse order.
  ComposedRankContext(const Settings& settings, std::vector<std::shared_ptr<Communicator>> worlds)
      : RankContext(settings), worlds_(std::move(worlds)) {}

  /// Runs fn. An exception ends all worlds.
  template <class Fn>
  void attempt(const Fn& fn) noexcept {
    try {
      fn();
    } catch (const std::exception& error) {
      record_exception(error);
    }
  }
  const std::vector<std::shared_ptr<Communicator>>& worlds() const { return worlds_; }
  Failure failure() override { return failure_.failure(); }
  /// Advances the operations of all groups. Returns whether one has advanced.
  bool advance_groups();
  /// Throws: as ComposedCommunicator::check_requests().
  void check_requests();
  /// Throws: the failure of the first world that has failed.
  void advance_worlds() {
    for (auto world = worlds_.rbegin(); world != worlds_.rend(); ++world) (*world)->make_progress();
  }

 private:
  void record_exception(const std::exception& error) noexcept;
  void record(const Failure& failure) noexcept override;

  std::vector<std::shared_ptr<Communicator>> worlds_;
  bool progressed_ = false;  ///< since advance_groups()
  std::mutex record_mutex_;
  FailureRecord failure_;
};

}  // namespace lockstep::detail
