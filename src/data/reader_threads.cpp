#include <utility>

#include "lockstep/denormals.h"
#include "lockstep/prefetch_loader.h"

namespace lockstep::inline v0_2::detail {

ReaderThreads::ReaderThreads(std::size_t count) {
  threads_.reserve(count);
  for (std::size_t thread = 0; thread < count; ++thread)
    threads_.emplace_back([this, thread](const std::stop_token& stop) { run(stop, thread); });
}

ReaderThreads::~ReaderThreads() {
  {
    const std::lock_guard lock(mutex_);
    jobs_.clear();
  }
  for (std::jthread& thread : threads_) thread.request_stop();
}

void ReaderThreads::add(Job job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back({std::move(job), flushes_denormals()});
  }
  added_.notify_one();
}

void ReaderThreads::clear() {
  std::unique_lock lock(mutex_);
  jobs_.clear();
  idle_.wait(lock, [&] { return running_ == 0; });
}

void ReaderThreads::run(const std::stop_token& stop, std::size_t thread) {
  std::unique_lock lock(mutex_);
  while (added_.wait(lock, stop, [&] { return !jobs_.empty(); })) {
    {
      const Added added = std::move(jobs_.front());
      jobs_.pop_front();
      ++running_;
      lock.unlock();
      flush_denormals(added.flushes_denormals);
      added.job(thread);
    }  // what the job holds is released by its thread, and before it counts as done
    lock.lock();
    if (--running_ == 0) idle_.notify_all();
  }
}

}  // namespace lockstep::detail
