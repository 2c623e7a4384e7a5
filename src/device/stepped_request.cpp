#include "device/stepped_request.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "comm/waiting.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::device {

using detail::concat;

SteppedRequest::SteppedRequest(SteppedCommunicator& group, Operation&& operation)
    : GroupRequest(group, std::move(operation)) {}

bool SteppedRequest::work_is_complete() {
  if (!work_.pending()) return true;
  if (!work_.ready()) return false;
  worked_ += work_.worked();
  work_.wait();
  if (operation().collective == Collective::recv) set_source(work_.source());
  return true;
}

void SteppedRequest::advance() {
  if (complete()) return;
  while (next_ < steps_.size()) {
    if (!steps_[next_]()) return;
    ++next_;
  }
  steps_.clear();  // with memory that they use; it is not the program's
  set_complete();
}

void SteppedRequest::check_ranks() {
  if (complete()) return;
  if (work_.pending()) {
    work_.check();
  } else {
    group().host().check_processes(operation().label());
  }
  const auto limit = detail::wait_limit(operation(), group().context().timeout());
  if (std::chrono::steady_clock::now() - begun_ < limit) return;
  const auto ranks = work_.missing();
  const auto what = work_.pending() ? detail::awaited(ranks)
                                    : std::string("the device, which has not completed it");
  throw TimeoutError(
      concat(operation().label(), " waited ", limit.count() / 1000.0, " s for ", what),
      {.rank = detail::lowest(ranks)});
}

SteppedCommunicator::SteppedCommunicator(std::shared_ptr<DeviceRankContext> context,
                                         std::shared_ptr<Communicator> host)
    : BackendCommunicator(host->rank(), host->size()),
      context_(std::move(context)),
      host_(std::move(host)) {
  set_hosts(host_->hosts());
}

std::shared_ptr<Communicator> SteppedCommunicator::handle(
    std::shared_ptr<SteppedCommunicator> group) {
  auto* const raw = group.get();
  raw->begin_use();
  return {raw, [group = std::move(group)](Communicator*) mutable {
            group->finish();
            group.reset();
          }};
}

void SteppedCommunicator::finish() noexcept {
  if (context_->in_child()) return;
  std::vector<std::shared_ptr<void>> ended;  // destroyed after the lock
  const auto lock = context_->lock();
  while (!requests_.empty() && !context_->failed() && !context_->ended()) {
    context_->advance();
    release(ended);
    if (!requests_.empty()) std::this_thread::sleep_for(detail::poll_pause);
  }
  drop(ended);
  // The progress thread uses groups and the host world under the lock.
  context_->remove(*this);
  host_.reset();
}

void SteppedCommunicator::poll() {
  check_device();
  for (const auto& request : requests_) request->advance();
}

std::size_t SteppedCommunicator::pending() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(requests_, [](const auto& request) { return !request->complete(); }));
}

void SteppedCommunicator::release(std::vector<std::shared_ptr<void>>& complete) {
  std::erase_if(requests_, [&](auto& request) {
    if (!request->complete()) return false;
    complete.push_back(std::move(request));
    return true;
  });
}

void SteppedCommunicator::drop(std::vector<std::shared_ptr<void>>& pending) {
  pending.insert(pending.end(), requests_.begin(), requests_.end());
  requests_.clear();
}

void SteppedCommunicator::check() {
  for (const auto& request : requests_) request->check_ranks();
}

std::shared_ptr<SteppedRequest> SteppedCommunicator::begin_steps(
    Operation&& operation, const std::function<void(SteppedRequest&)>& start) {
  const detail::RankContext::CallGuard guard(*context_);
  number(operation);
  if (context_->failed()) context_->throw_failure(where(operation.label()));
  auto request = std::make_shared<SteppedRequest>(*this, std::move(operation));
  context_->or_fail<std::exception>([&] { start(*request); });
  requests_.push_back(request);
  context_->poll();
  if (!request->complete()) context_->wake_thread();
  return request;
}

Work SteppedCommunicator::forward(Operation&& operation) {
  return Work(begin_steps(std::move(operation), [this](SteppedRequest& request) {
    request.set_work(detail::reissue(host(), request.operation()));
    request.set_steps({[&request] { return request.work_is_complete(); }});
  }));
}

}  // namespace lockstep::device
