#pragma once

#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "comm/operation.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2::detail {

/// The processor's instruction for spin loops.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

/// Time without progress after which a rank that must poll sleeps between polls.
inline constexpr auto yield_time = std::chrono::milliseconds(20);
/// Duration of each such sleep.
inline constexpr auto poll_pause = std::chrono::microseconds(50);

/// Whether each rank of a host has cores of its own and may spin. cores: number of cores that the
/// ranks share; 0 for all cores of the machine.
bool fit_cores(int ranks, int threads_per_rank, int cores);

/// Longest wait for the operation: its timeout, else that of the world. Limited to a year, so that
/// sums do not overflow.
std::chrono::milliseconds wait_limit(const Operation& operation, std::chrono::milliseconds world);

/// A condition that a rank or a Task waits for.
class Condition {
 public:
  /// Whether the wait is over. Does not block.
  virtual bool is_ready() = 0;

 protected:
  ~Condition() = default;
};

/// The condition of until().
template <class Ready>
class Until final : public Condition {
 public:
  explicit Until(Ready ready) : ready_(std::move(ready)) {}
  bool is_ready() override { return ready_(); }
  void resume() noexcept {}

 private:
  Ready ready_;
};

/// The condition that ready() returns true.
template <class Ready>
Until<Ready> until(Ready ready) {
  return Until<Ready>(std::move(ready));
}

enum class WaitState { pending, complete, failed };

/// One poll of a wait. advance() advances the operations of this rank, complete() is whether the
/// awaited one is complete, failed() whether the world has failed.
template <class Advance, class Complete, class Failed>
WaitState poll_wait(const Advance& advance, const Complete& complete, const Failed& failed) {
  advance();
  if (complete()) return WaitState::complete;
  if (!failed()) return WaitState::pending;
  // Data that other ranks wrote before the failure are visible now.
  advance();
  return complete() ? WaitState::complete : WaitState::failed;
}

/// The text of an error about the missing ranks of an operation, as rank_list(). If there are none,
/// the operation waits for data in transit.
std::string missing_text(std::span<const int> ranks,
                         const std::function<std::string_view(int)>& note = {});

/// The lowest rank; -1 if there is none.
int lowest(std::span<const int> ranks);

/// Receives the intervals in which one thread reduced and copied, for operations of any group.
class WorkObserver {
 public:
  virtual void worked(std::chrono::steady_clock::time_point begin,
                      std::chrono::steady_clock::time_point end) noexcept = 0;

 protected:
  ~WorkObserver() = default;
};

/// The calling thread's observer; null for none.
inline constinit thread_local WorkObserver* this_threads_work_observer = nullptr;

/// Total time in which this thread has reduced and copied, for all groups.
std::chrono::nanoseconds work_done();

/// Adds the time of its scope to the work of one operation and of this thread.
class WorkTimer {
 public:
  explicit WorkTimer(std::chrono::nanoseconds& of_operation);
  ~WorkTimer();
  WorkTimer(const WorkTimer&) = delete;
  WorkTimer& operator=(const WorkTimer&) = delete;

 private:
  std::chrono::nanoseconds& of_operation_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace lockstep::detail
