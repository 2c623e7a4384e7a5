#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "lockstep/adapter/flight.h"

namespace lockstep::adapter {

/// A thread that runs flights one after another, in the order in which they were added.
class Lane {
 public:
  Lane() : thread_([this] { run(); }) {}
  /// Waits for those that are there.
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void add(std::shared_ptr<Flight> flight);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable added_;
  std::deque<std::shared_ptr<Flight>> flights_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace lockstep::adapter
