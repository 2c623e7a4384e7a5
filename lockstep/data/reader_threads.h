#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

namespace lockstep::detail {

/// Threads that begin jobs in the order in which these were added.
class ReaderThreads {
 public:
  /// Is told which thread does it, from 0 on; must not throw.
  using Job = std::function<void(std::size_t thread)>;

  explicit ReaderThreads(std::size_t count);
  /// Forgets what was not begun, waits for what was.
  ~ReaderThreads();
  ReaderThreads(const ReaderThreads&) = delete;
  ReaderThreads& operator=(const ReaderThreads&) = delete;

  void add(Job job);
  /// Forgets what was not begun, and returns when no job runs.
  void clear();

 private:
  void run(const std::stop_token& stop, std::size_t thread);

  std::mutex mutex_;
  std::condition_variable_any added_;
  std::condition_variable idle_;
  std::deque<Job> jobs_;
  std::size_t running_ = 0;
  std::vector<std::jthread> threads_;  ///< the last member: they use the others
};

}  // namespace lockstep::detail
