#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

namespace lockstep::inline v0_2::detail {

/// A thread that advances a rank's operations between the rank's own calls. Note [How the progress
/// thread keeps out of the way] is in progress_thread.cpp.
class ProgressThread {
 public:
  struct Outcome {
    bool news;              ///< something has come
    bool under_way;         ///< something is still to come
    bool attended = false;  ///< the rank's own thread polled since the last call: nothing was done
  };

  /// advance() is called with the mutex held, as all other code that advances operations does, and
  /// throws nothing. Throws: CommError when the process may start no more threads.
  ProgressThread(std::mutex& mutex, std::function<Outcome()> advance);
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  /// Something is under way from now on. Call it with the mutex held.
  void wake() noexcept;
  /// Returns once the thread advances nothing any more. Call it without the mutex; any number of
  /// times. It is called for all such threads when the process exits.
  void stop() noexcept;

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
