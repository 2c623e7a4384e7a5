#include "adapter/request_thread.h"

#include <tuple>
#include <utility>

namespace lockstep::inline v0_2::adapter {

RequestThread::~RequestThread() {
  if (process_.in_child()) {
    thread_.detach();  // it runs in the parent only
    std::ignore = added_.release();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  added_->notify_all();
  thread_.join();
}

void RequestThread::add(std::shared_ptr<C10dRequest> request) {
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(std::move(request));
  }
  added_->notify_all();
}

void RequestThread::run() {
  for (;;) {
    std::shared_ptr<C10dRequest> next;
    {
      std::unique_lock lock(mutex_);
      added_->wait(lock, [this] { return ending_ || !requests_.empty(); });
      if (requests_.empty()) return;
      next = std::move(requests_.front());
      requests_.pop_front();
    }
    next->run();
  }
}

}  // namespace lockstep::adapter
