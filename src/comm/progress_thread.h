#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

namespace lockstep::inline v0_2::detail {

/// A thread that advances a rank's operations between the rank's own calls. Note [When the progress
/// thread polls] is in progress_thread.cpp.
class ProgressThread {
 public:
  struct Outcome {
    bool progressed;                 ///< a message has arrived or was sent
    bool pending;                    ///< operations are not complete
    bool own_thread_polled = false;  ///< since the last call; advance() did nothing
  };

  /// advance() is called with the mutex held, and must not throw. All code that advances operations
  /// must hold the mutex.
  /// Throws: CommError if the process cannot start another thread.
  ProgressThread(std::mutex& mutex, std::function<Outcome()> advance);
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  /// Wakes the thread, after an operation has begun. Call it with the mutex held.
  void wake() noexcept;
  /// Stops the thread and waits for its end. Call it without the mutex, any number of times. At
  /// exit of the process, it is called for all progress threads.
  void stop() noexcept;
  /// Whether the exit of the process has stopped the threads. After that, libraries such as CUDA's
  /// may have shut down.
  static bool stopped_at_exit() noexcept;

 private:
  enum class State { awake, asleep, stopping };

  void run() noexcept;

  std::mutex& mutex_;
  std::function<Outcome()> advance_;
  std::atomic<State> state_{State::asleep};
  pid_t process_;
  std::thread thread_;
};

}  // namespace lockstep::detail
