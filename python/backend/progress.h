#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "backend/membership.h"
#include "backend/progress_work.h"
#include "backend/shown_wait.h"
#include "comm/communicator.h"
#include "core/system/process.h"

namespace lockstep_torch {

/// Throws what a signal raises in the interpreter, as Ctrl-C does. Called on the main thread,
/// without the interpreter's lock. In module.cpp.
void raise_signals();

/// Advances the operations of one process group, and admits any number of threads to its
/// Communicator. Threads that wait for a Work advance all operations. While no thread waits, a
/// progress thread does. Note [Which thread advances operations] is in progress.cpp.
class Progress : public std::enable_shared_from_this<Progress> {
 public:
  Progress(World world, std::chrono::milliseconds timeout);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  std::chrono::milliseconds timeout() const { return timeout_.load(); }
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }

  /// The arguments of a function that begins the parts of a Work, under the mutex.
  struct Scope {
    lockstep::Communicator& world;
    Parts& parts;
  };
  struct Terms {
    std::chrono::milliseconds timeout{};  ///< 0 or less for the timeout of the group
    bool asynchronous = true;             ///< false: the caller waits for the Work at once
  };
  /// Begins the parts of a Work. Throws what python_error() returns.
  void submit(const WorkPointer& work, Terms terms, const std::function<void(Scope)>& begin);

  /// Advances all operations without blocking; true if there was progress.
  bool advance();
  /// Waits until the Work is complete; false if the deadline has passed.
  bool wait(BackendWork& work, Deadline& deadline);

  /// Ends the world for every rank.
  void fail(const std::string& cause) noexcept;
  /// Calls a function with the world, under the mutex that operations begin under.
  void locked(const std::function<void(const std::shared_ptr<lockstep::Communicator>&)>& function);
  /// Calls a function before the world is left, when no operation is pending. It drops what refers
  /// to the world.
  void before_leaving(std::function<void()> function);
  /// Memory that ranks read in place.
  std::shared_ptr<std::byte> allocate(std::size_t bytes);
  /// Completes what other ranks may wait for, for a few seconds, and leaves the world. Any number
  /// of times.
  void stop() noexcept;

 private:
  /// Works whose parts are complete, and their errors.
  using Finished = std::vector<std::pair<WorkPointer, std::exception_ptr>>;

  static void complete(Finished& finished);
  bool advance(Finished& finished);
  bool advance(BackendWork& work, bool check);
  void expect_in_time(BackendWork& work, std::vector<int> missing);
  /// Ends the receives that no message has matched.
  void withdraw_receives() noexcept;
  void drain() noexcept;
  /// Ends all operations: by themselves within some seconds, else with an error.
  void end_operations() noexcept;
  void expect_usable() const;
  void ensure_leader();
  void run();
  void lead(std::unique_lock<std::mutex>& lock);

  std::shared_ptr<std::mutex> shared_mutex_;
  std::mutex& mutex_ = *shared_mutex_;
  std::shared_ptr<lockstep::Communicator> world_;
  std::list<WorkPointer> pending_;
  std::atomic<std::chrono::milliseconds> timeout_;
  Clock::time_point last_check_ = Clock::now();
  lockstep::detail::ForkGuard process_;
  bool fits_cores_;
  std::vector<std::function<void()>> before_leaving_;
  std::optional<ShownWait> shown_wait_;  ///< of the thread that has waited longest

  std::vector<std::thread> threads_;
  std::condition_variable work_begun_;
  std::condition_variable waits_ended_;
  std::atomic<int> waiting_{0};  ///< threads that wait() and advance operations
  int idle_ = 0;                 ///< progress threads without work
  bool led_ = false;             ///< a progress thread advances operations
  bool stopping_ = false;
};

}  // namespace lockstep_torch
