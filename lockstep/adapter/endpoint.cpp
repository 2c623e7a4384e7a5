#include "lockstep/adapter/endpoint.h"

#include <ATen/ops/from_blob.h>

#include <exception>
#include <stdexcept>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/core/text.h"

namespace lockstep::adapter {

using detail::concat;

/// What one exchange has posted. What has not ended when it goes is aborted: the bytes are others'
/// from then on.
class Endpoint::UnderWay {
 public:
  explicit UnderWay(Endpoint& endpoint) : endpoint_(endpoint) {}
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;
  ~UnderWay() {
    const std::lock_guard lock(endpoint_.mutex_);
    for (const auto& work : works_) endpoint_.abort(*work);
    // Gone while nobody can abort them from elsewhere: they may hold on to the bytes.
    for (const auto& place : places_) endpoint_.under_way_.erase(place);
    works_.clear();
  }

  void add(c10::intrusive_ptr<c10d::Work> work) {
    const std::lock_guard lock(endpoint_.mutex_);
    if (endpoint_.failed()) endpoint_.abort(*work);
    places_.push_back(endpoint_.under_way_.insert(endpoint_.under_way_.end(), work));
    works_.push_back(std::move(work));
  }

  /// Blocks until the first has ended. Throws: as exchange().
  void await_first(std::chrono::milliseconds longest) {
    if (!works_.front()->wait(longest)) throw std::runtime_error("the message was aborted");
    const std::lock_guard lock(endpoint_.mutex_);
    endpoint_.under_way_.erase(places_.front());
    places_.pop_front();
    works_.pop_front();
  }

 private:
  Endpoint& endpoint_;
  Works works_;
  std::list<Works::iterator> places_;
};

Endpoint::Endpoint(c10::intrusive_ptr<c10d::Backend> backend, std::chrono::milliseconds timeout)
    : backend_(std::move(backend)),
      name_(concat("c10d/", backend_->getBackendName())),
      timeout_(timeout) {}

void Endpoint::watch(c10::intrusive_ptr<c10d::Store> store, std::int64_t world) {
  board_.emplace(std::move(store), world, [this](const control::Failure& heard) { record(heard); });
}

void Endpoint::exchange(std::span<const Message> messages, std::chrono::milliseconds longest,
                        std::optional<int>& awaited) {
  UnderWay posted(*this);
  std::vector<int> ranks;
  for (const auto& message : messages) {
    if (message.bytes == 0) continue;
    posted.add(post(message));
    ranks.push_back(message.rank);
  }
  for (const int rank : ranks) {
    change([&] { awaited = rank; });
    if (failed()) throw std::runtime_error("the world has ended");
    posted.await_first(longest);
  }
  change([&] { awaited.reset(); });
}

c10::intrusive_ptr<c10d::Work> Endpoint::post(const Message& message) {
  std::vector<at::Tensor> tensors{
      at::from_blob(message.data, {static_cast<std::int64_t>(message.bytes)}, at::kByte)};
  const std::lock_guard lock(posting_);
  auto work = message.way == Message::Way::send
                  ? backend_->send(tensors, message.rank, message.tag)
                  : backend_->recv(tensors, message.rank, message.tag);
  if (!work) throw std::runtime_error("the backend gave nothing to wait for");
  return work;
}

void Endpoint::fail(const control::Failure& failure) noexcept {
  // The others know why before what ends here looks to them like a failure of its own.
  if (!failed() && board_) board_->tell(failure);
  record(failure);
}

void Endpoint::record(const control::Failure& failure) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = failure;
    failed_.store(true, std::memory_order_release);
    for (const auto& work : under_way_) abort(*work);
  }
  changed_.notify_all();
}

void Endpoint::abort(c10d::Work& work) noexcept {
  try {
    work.abort();
    return;
  } catch (const std::exception&) {
    // Not every backend can end one message.
  }
  try {
    backend_->abort();
  } catch (const std::exception& error) {
    log::warn(concat(name_, ": rank ", rank(), " cannot abort: ", error.what()));
  }
}

void Endpoint::throw_failure(std::string_view where) {
  control::Failure failure;
  look([&] { failure = *failure_; });
  const std::string text = concat(where, ": ", failure.text);
  log::warn(text);
  if (failure.timeout) throw TimeoutError(text);
  throw CommError(text);
}

}  // namespace lockstep::adapter
