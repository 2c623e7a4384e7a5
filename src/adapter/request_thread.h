#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "adapter/c10d_request.h"
#include "core/fork_guard.h"

namespace lockstep::inline v0_2::adapter {

/// A thread that runs requests one after another, in the order in which they were added.
class RequestThread {
 public:
  RequestThread() : thread_([this] { run(); }) {}
  /// Waits for those that are there.
  ~RequestThread();
  RequestThread(const RequestThread&) = delete;
  RequestThread& operator=(const RequestThread&) = delete;

  void add(std::shared_ptr<C10dRequest> request);

 private:
  void run();

  std::mutex mutex_;
  /// A forked child leaves it: to destroy it would wait for the parent's thread.
  std::unique_ptr<std::condition_variable> added_ = std::make_unique<std::condition_variable>();
  std::deque<std::shared_ptr<C10dRequest>> requests_;
  bool ending_ = false;
  detail::ForkGuard process_;
  std::thread thread_;
};

}  // namespace lockstep::adapter
