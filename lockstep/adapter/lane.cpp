#include "lockstep/adapter/lane.h"

#include <utility>

namespace lockstep::adapter {

Lane::~Lane() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  added_.notify_all();
  thread_.join();
}

void Lane::add(std::shared_ptr<Flight> flight) {
  {
    const std::lock_guard lock(mutex_);
    flights_.push_back(std::move(flight));
  }
  added_.notify_all();
}

void Lane::run() {
  for (;;) {
    std::shared_ptr<Flight> next;
    {
      std::unique_lock lock(mutex_);
      added_.wait(lock, [this] { return ending_ || !flights_.empty(); });
      if (flights_.empty()) return;
      next = std::move(flights_.front());
      flights_.pop_front();
    }
    next->run();
  }
}

}  // namespace lockstep::adapter
