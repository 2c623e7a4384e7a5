#include "lockstep/prefetch_loader.h"

#include <c10/util/Exception.h>

#include <exception>
#include <string>
#include <utility>

#include "core/operation_error.h"
#include "core/text.h"
#include "lockstep/denormals.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

namespace {

thread_local std::chrono::nanoseconds loading{};

}  // namespace

std::chrono::nanoseconds loading_time() { return loading; }

Loading::~Loading() { loading += std::chrono::steady_clock::now() - begin_; }

PrefetchOptions checked(PrefetchOptions options) {
  if (options.batch_size == 0)
    throw_invalid("PrefetchLoader", "got a batch size of 0, expected at least 1");
  return options;
}

namespace {

/// Rethrows the current exception, nested in a DataError.
[[noreturn]] void throw_as_data_error(const std::string& where) {
  const ErrorDetails of_loader{.operation = "PrefetchLoader"};
  try {
    throw;
  } catch (const c10::Error& error) {
    std::throw_with_nested(
        DataError(concat(where, ": ", error.what_without_backtrace()), of_loader));
  } catch (const std::exception& error) {
    std::throw_with_nested(DataError(concat(where, ": ", error.what()), of_loader));
  } catch (...) {
    std::throw_with_nested(
        DataError(concat(where, ": an exception that is not a std::exception"), of_loader));
  }
}

}  // namespace

void rethrow_named(std::size_t batch, c10::ArrayRef<std::size_t> indices,
                   const std::function<void(std::size_t index)>& read_alone) {
  for (const std::size_t index : indices) {
    try {
      if (indices.size() > 1)
        read_alone(index);
      else
        throw;
    } catch (...) {
      throw_as_data_error(concat("batch ", batch, ", index ", index));
    }
  }
  throw_as_data_error(concat("batch ", batch, ", of ", indices.size(), " samples"));
}

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
    }  // destroys the job in this thread, before it counts as done
    lock.lock();
    if (--running_ == 0) idle_.notify_all();
  }
}

}  // namespace lockstep::detail
