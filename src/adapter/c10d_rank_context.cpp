#include "adapter/c10d_rank_context.h"

#include <ATen/ops/from_blob.h>

#include <exception>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/log.h"
#include "core/text.h"

namespace lockstep::inline v0_2::adapter {

using detail::concat;

RankContext::RankContext(c10::intrusive_ptr<c10d::Backend> backend,
                         std::chrono::milliseconds timeout)
    : backend_(std::move(backend)),
      name_(concat("c10d/", backend_->getBackendName())),
      timeout_(timeout) {}

void RankContext::watch(c10::intrusive_ptr<c10d::Store> store, std::int64_t world) {
  failure_store_.emplace(std::move(store), world,
                         [this](const detail::Failure& failure) { record(failure); });
}

RankContext::Posted RankContext::post(Direction direction, std::byte* data, std::size_t bytes,
                                      int rank, int tag) {
  std::vector<at::Tensor> tensors{
      at::from_blob(data, {static_cast<std::int64_t>(bytes)}, at::kByte)};
  c10::intrusive_ptr<c10d::Work> work;
  {
    const std::lock_guard lock(backend_mutex_);
    work = direction == Direction::send ? backend_->send(tensors, rank, tag)
                                        : backend_->recv(tensors, rank, tag);
  }
  if (!work) throw std::runtime_error("the backend returned no Work");
  const std::lock_guard lock(mutex_);
  if (failed()) abort(*work);
  return in_flight_.insert(in_flight_.end(), std::move(work));
}

void RankContext::release(Posted posted) {
  const std::lock_guard lock(mutex_);
  in_flight_.erase(posted);
}

void RankContext::abort(Posted posted) noexcept {
  const std::lock_guard lock(mutex_);
  abort(**posted);
  // Destroyed under the lock, so that no other thread aborts it. It may refer to the memory.
  in_flight_.erase(posted);
}

void RankContext::fail(const detail::Failure& failure) noexcept {
  if (in_child()) return;
  // Publishes the cause first. Otherwise other ranks would report the aborted messages as the
  // cause.
  if (!failed() && failure_store_) failure_store_->publish(failure);
  record(failure);
}

void RankContext::record(const detail::Failure& failure) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = failure;
    failed_.store(true, std::memory_order_release);
    for (const auto& work : in_flight_) abort(*work);
  }
  changed_.notify_all();
}

void RankContext::abort(c10d::Work& work) noexcept {
  try {
    work.abort();
    return;
  } catch (const std::exception&) {
    // Not every backend can abort a single message.
  }
  try {
    backend_->abort();
  } catch (const std::exception& error) {
    log::warn(concat(name_, ": rank ", rank(), " cannot abort: ", error.what()));
  }
}

void RankContext::throw_failure(std::string_view where) {
  raised_failure_.raise(where, look([&] { return *failure_; }));
}

}  // namespace lockstep::adapter
