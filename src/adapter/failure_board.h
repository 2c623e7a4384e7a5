#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/control/failure.h"
#include "core/process.h"

namespace lockstep::inline v0_2::adapter {

/// Where the ranks of a world write the first cause of its failure, and look for it: a key of a
/// c10d::Store. A thread of its own asks the store, which may take its time.
class FailureBoard {
 public:
  using Heard = std::function<void(const control::Failure&)>;

  /// world tells worlds of the same store apart; heard is called once at most, by the board's
  /// thread, of one's own failure too.
  FailureBoard(const c10::intrusive_ptr<c10d::Store>& store, std::int64_t world, Heard heard);
  /// Writes what it was told before, and waits for that.
  ~FailureBoard();
  FailureBoard(const FailureBoard&) = delete;
  FailureBoard& operator=(const FailureBoard&) = delete;

  /// Writes the failure unless another was there before it, of which is heard then; waits for that,
  /// for a second at most. Any thread but its own.
  void tell(const control::Failure& failure) noexcept;
  /// Looks at once instead of in a while, and waits for that, for a second at most. Any thread but
  /// its own.
  void ask();

 private:
  void run();
  /// Whether there is more to do: nothing is written or found.
  bool look();
  void answer();

  c10::intrusive_ptr<c10d::Store> store_;
  std::string key_;
  Heard heard_;
  std::mutex mutex_;
  /// A forked child leaves it: to destroy it would wait for the parent's thread.
  std::unique_ptr<std::condition_variable> changed_ = std::make_unique<std::condition_variable>();
  std::optional<control::Failure> told_;
  bool asked_ = false;
  bool ended_ = false;
  bool stopping_ = false;
  detail::ForkGuard process_;
  std::thread thread_;
};

}  // namespace lockstep::adapter
