#include "lockstep/prefetch_loader.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "core/failure.h"
#include "core/operation_error.h"
#include "core/system/process.h"
#include "core/text.h"
#include "device/comm_stream.h"
#include "lockstep/denormals.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

namespace {

thread_local std::chrono::nanoseconds loading{};

}  // namespace

std::chrono::nanoseconds loading_time() { return loading; }

Loading::~Loading() { loading += std::chrono::steady_clock::now() - begin_; }

void check_size(std::size_t of_sampler, std::optional<std::size_t> of_dataset) {
  if (!of_dataset || of_sampler <= *of_dataset) return;
  throw_invalid("PrefetchLoader", "got a sampler of ", of_sampler, " samples, expected at most ",
                *of_dataset,
                ", the dataset's size: construct the sampler with size().value() of the dataset");
}

PrefetchOptions checked(PrefetchOptions options, bool has_tensors) {
  if (options.batch_size == 0)
    throw_invalid("PrefetchLoader", "got a batch size of 0, expected at least 1");
  if (options.device && options.device->is_cpu()) options.device.reset();
  if (!options.device) return options;
  if (!has_tensors) {
    throw_invalid("PrefetchLoader", "got device ", *options.device,
                  " with batches of a type whose tensors are unknown: declare `void "
                  "change_tensors(Batch& batch, const auto& change)` in its namespace, which calls "
                  "change with every tensor");
  }
  const auto type = options.device->type();
  if (!c10::impl::hasDeviceGuardImpl(type)) {
    throw_invalid("PrefetchLoader", "got device ", *options.device,
                  ", which this build of LibTorch does not support");
  }
  const c10::impl::VirtualGuardImpl guard(type);
  if (!options.device->has_index()) options.device = guard.getDevice();
  if (options.device->index() >= guard.deviceCount()) {
    throw_invalid("PrefetchLoader", "got device ", *options.device, ", expected an index below ",
                  static_cast<int>(guard.deviceCount()),
                  ", the number of devices that this process can use");
  }
  return options;
}

struct BatchCopy {
  std::vector<at::Tensor> sources = {};
  std::vector<at::Tensor> copies = {};
  c10::Stream owner;  ///< stream of the copies' memory
  c10::Event done;
};

struct BatchCopier::Streams {
  explicit Streams(at::Device on)
      : device(on), guard(on.type()), copies(guard.getStreamFromGlobalPool(on)) {}
  c10::Stream current() const { return guard.getStream(device); }

  at::Device device;
  c10::impl::VirtualGuardImpl guard;
  c10::Stream copies;  ///< the stream on which batches are copied
};

BatchCopier::BatchCopier(const PrefetchOptions& options)
    : pin_memory_(options.pin_memory), streams_(std::make_unique<Streams>(*options.device)) {}

BatchCopier::~BatchCopier() {
  try {
    if (!running_.empty()) running_.back()->done.synchronize();
  } catch (const std::exception&) {
    // The device has failed; the program's next use of it raises the error.
  }
}

at::Tensor BatchCopier::pinned(const at::Tensor& tensor) const {
  const bool is_strided = tensor.defined() && tensor.layout() == at::kStrided;
  if (!pin_memory_ || !is_strided || !tensor.is_cpu() || tensor.is_pinned()) return tensor;
  const c10::DeviceGuard on(streams_->device);
  const at::NoGradGuard no_grad;
  return at::empty_like(tensor, tensor.options().pinned_memory(true)).copy_(tensor);
}

std::shared_ptr<BatchCopy> BatchCopier::begin(const Tensors& tensors) {
  const c10::DeviceGuard on(streams_->device);
  const at::NoGradGuard no_grad;
  // Frees the sources of copies that are complete.
  while (!running_.empty() && device::is_complete(running_.front()->done)) running_.pop_front();
  auto copy = std::make_shared<BatchCopy>(
      BatchCopy{.owner = streams_->current(), .done = c10::Event(streams_->device.type())});
  for (auto* tensor : tensors) {
    if (!tensor->defined() || !tensor->is_cpu()) continue;
    if (tensor->layout() != at::kStrided) {
      *tensor = tensor->to(streams_->device);
      continue;
    }
    copy->sources.push_back(*tensor);
    *tensor =
        at::empty_like(*tensor, tensor->options().device(streams_->device).pinned_memory(false));
    copy->copies.push_back(*tensor);
  }
  device::CommStream::order(copy->owner, streams_->copies);
  {
    const c10::StreamGuard on_stream(streams_->copies);
    for (std::size_t i = 0; i < copy->sources.size(); ++i) {
      copy->copies[i].copy_(copy->sources[i], /*non_blocking=*/true);
    }
  }
  copy->done.record(streams_->copies);
  running_.push_back(copy);
  return copy;
}

void BatchCopier::finish(const std::shared_ptr<BatchCopy>& copy) {
  const auto current = streams_->current();
  copy->done.block(current);
  if (current != copy->owner) {
    // The allocator must not give the memory to its stream before the current stream has used it.
    copy->done.block(copy->owner);
    for (const auto& tensor : copy->copies) {
      streams_->guard.recordDataPtrOnStream(tensor.storage().data_ptr(), current);
    }
  }
  copy->copies.clear();
}

namespace {

/// Rethrows the current exception, nested in a DataError.
[[noreturn]] void throw_as_data_error(const std::string& where) {
  std::throw_with_nested(
      DataError(concat(where, ": ", current_error_text()), {.operation = "PrefetchLoader"}));
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

std::shared_ptr<ReaderThreads> ReaderThreads::create(std::size_t count) {
  return {new ReaderThreads(count), [process = ForkGuard()](ReaderThreads* threads) {
            if (!process.in_child()) delete threads;
          }};
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
