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

/// The messages that one exchange has posted. The destructor aborts those that have not ended,
/// since their memory belongs to the caller again.
class RankContext::UnderWay {
 public:
  explicit UnderWay(RankContext& context) : context_(context) {}
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;
  ~UnderWay() {
    const std::lock_guard lock(context_.mutex_);
    for (const auto& work : works_) context_.abort(*work);
    // Released under the lock, where no other thread can abort them: they may hold on to the bytes.
    for (const auto& place : places_) context_.under_way_.erase(place);
    works_.clear();
  }

  void add(c10::intrusive_ptr<c10d::Work> work) {
    const std::lock_guard lock(context_.mutex_);
    if (context_.failed()) context_.abort(*work);
    places_.push_back(context_.under_way_.insert(context_.under_way_.end(), work));
    works_.push_back(std::move(work));
  }

  /// Blocks until the first has ended. Throws: as exchange().
  void await_first(std::chrono::milliseconds longest) {
    if (!works_.front()->wait(longest)) throw std::runtime_error("the message was aborted");
    const std::lock_guard lock(context_.mutex_);
    context_.under_way_.erase(places_.front());
    places_.pop_front();
    works_.pop_front();
  }

 private:
  RankContext& context_;
  Works works_;
  std::list<Works::iterator> places_;
};

RankContext::RankContext(c10::intrusive_ptr<c10d::Backend> backend,
                         std::chrono::milliseconds timeout)
    : backend_(std::move(backend)),
      name_(concat("c10d/", backend_->getBackendName())),
      timeout_(timeout) {}

void RankContext::watch(c10::intrusive_ptr<c10d::Store> store, std::int64_t world) {
  board_.emplace(std::move(store), world, [this](const control::Failure& heard) { record(heard); });
}

void RankContext::exchange(std::span<const Message> messages, std::chrono::milliseconds longest,
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

c10::intrusive_ptr<c10d::Work> RankContext::post(const Message& message) {
  std::vector<at::Tensor> tensors{
      at::from_blob(message.data, {static_cast<std::int64_t>(message.bytes)}, at::kByte)};
  const std::lock_guard lock(posting_);
  auto work = message.way == Message::Way::send
                  ? backend_->send(tensors, message.rank, message.tag)
                  : backend_->recv(tensors, message.rank, message.tag);
  if (!work) throw std::runtime_error("the backend gave nothing to wait for");
  return work;
}

void RankContext::fail(const control::Failure& failure) noexcept {
  if (in_child()) return;
  // The others know why before what ends here looks to them like a failure of its own.
  if (!failed() && board_) board_->tell(failure);
  record(failure);
}

void RankContext::record(const control::Failure& failure) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = failure;
    failed_.store(true, std::memory_order_release);
    for (const auto& work : under_way_) abort(*work);
  }
  changed_.notify_all();
}

void RankContext::abort(c10d::Work& work) noexcept {
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

void RankContext::throw_failure(std::string_view where) {
  raised_failure_.raise(where, look([&] { return *failure_; }));
}

}  // namespace lockstep::adapter
