#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace lockstep {

struct CollectiveStatistics;

namespace detail {

/// The backend's side of a Work: one operation in flight.
class Ticket {
 public:
  /// From when to when it was under way, of an operation that advances while nobody waits; else
  /// nothing.
  struct Apart {
    std::chrono::steady_clock::time_point begun{};
    std::chrono::steady_clock::time_point complete{};
  };

  virtual ~Ticket() = default;
  /// Advances nothing. Any thread.
  virtual bool complete() const = 0;
  /// Advances without blocking; true once complete. Throws what went wrong.
  virtual bool test() = 0;
  /// Blocks until complete. Throws what went wrong.
  virtual void wait() = 0;
  /// The owner is unwinding and will not wait: ends the world, naming this operation.
  virtual void abandon() noexcept = 0;
  /// Sees whether all that it waits for can still come; costs a system call or more. Throws what
  /// went wrong.
  virtual void check() {}
  /// World ranks that have not done what this waits for.
  virtual std::vector<int> missing() const { return {}; }

  /// Time that this rank has spent on its share of the operation.
  std::chrono::nanoseconds worked() const { return worked_; }
  const Apart& apart() const { return apart_; }

 protected:
  std::chrono::nanoseconds worked_{};
  Apart apart_;
};

}  // namespace detail

/// A collective in flight. The buffers belong to it until wait() returns.
/// Destroying an unfinished Work waits, bounded by the timeout; what goes wrong then has ended the
/// world and is raised by the group's next call. During unwinding it does not wait: it ends the
/// world.
class [[nodiscard]] Work {
 public:
  Work() = default;  ///< nothing in flight: complete
  explicit Work(std::shared_ptr<detail::Ticket> ticket) : ticket_(std::move(ticket)) {}
  Work(Work&&) noexcept = default;
  Work& operator=(Work&& other) noexcept;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  ~Work() { finish(); }

  /// Blocks until the result is there.
  /// Throws: CommError or TimeoutError naming operation, sequence number, rank and missing ranks.
  void wait();

  /// Advances what can be advanced and says whether wait() would return at once.
  bool ready();

  /// The same, but advances nothing: for who computes meanwhile and leaves progress to a thread.
  bool complete() const { return ticket_ == nullptr || ticket_->complete(); }

  /// Throws when somebody whom it waits for has gone: for who calls ready() again and again.
  void check() {
    if (ticket_ != nullptr) ticket_->check();
  }
  /// Time that this rank has spent on its share so far.
  std::chrono::nanoseconds worked() const {
    return ticket_ != nullptr ? ticket_->worked() : std::chrono::nanoseconds();
  }
  /// World ranks that it waits for.
  std::vector<int> missing() const {
    return ticket_ != nullptr ? ticket_->missing() : std::vector<int>();
  }

  /// False once waited for, or if there was never anything to wait for.
  bool pending() const { return ticket_ != nullptr; }

  /// Counts what waiting for it and working on it cost in this row; and in the thread's sums and
  /// trace, unless it is a part of another group's operation.
  void count_in(std::shared_ptr<CollectiveStatistics> row, std::uint64_t bytes, bool is_part);

 private:
  /// Counts a wait that began at begin, during which so much work was done.
  void count(std::chrono::steady_clock::time_point begin, std::chrono::nanoseconds work,
             const detail::Ticket& ticket);
  /// Counts how long it was under way, and how much of that before the wait.
  void count_overlap(std::chrono::steady_clock::time_point begin,
                     std::chrono::steady_clock::time_point end, const detail::Ticket::Apart& apart);
  void finish() noexcept;

  std::shared_ptr<detail::Ticket> ticket_;
  std::shared_ptr<CollectiveStatistics> row_;
  std::uint64_t bytes_ = 0;
  std::int64_t begun_ = 0;  ///< by the trace's clock, where there is a trace
  bool is_part_ = false;
};

}  // namespace lockstep
