#include "device/hosted_communicator.h"

#include <exception>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/waiting.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::device {

using detail::concat;

HostedCommunicator::HostedCommunicator(std::shared_ptr<DeviceRankContext> context,
                                       std::shared_ptr<Communicator> host)
    : TaskCommunicator(std::move(context), host->rank(), host->size()), host_(std::move(host)) {
  set_hosts(host_->hosts());
}

std::shared_ptr<Communicator> HostedCommunicator::handle(
    std::shared_ptr<HostedCommunicator> group) {
  auto* const raw = group.get();
  raw->begin_use();
  return {raw, [group = std::move(group)](Communicator*) mutable {
            group->finish();
            group.reset();
          }};
}

void HostedCommunicator::finish() noexcept {
  if (context().in_child()) return;
  std::vector<std::shared_ptr<void>> ended;  // destroyed after the lock
  const auto lock = context().lock();
  while (has_requests() && !context().failed() && !context().ended()) {
    context().advance();
    release(ended);
    if (has_requests()) std::this_thread::sleep_for(detail::poll_pause);
  }
  drop(ended);
  // The progress thread uses groups and the host world under the lock.
  context().remove(*this);
  host_.reset();
}

void HostedCommunicator::poll() {
  context().or_cause([&] {
    check_device();
    TaskCommunicator::poll();
  });
}

void HostedCommunicator::check(const detail::TaskRequest& request) {
  auto* work = request.awaited_work();
  const auto& operation = request.operation();
  if (work != nullptr) {
    work->check();
  } else {
    host().check_processes(operation.label());
  }
  const auto limit = detail::wait_limit(operation, context().timeout());
  if (std::chrono::steady_clock::now() - request.begun() < limit) return;
  const auto ranks = work != nullptr ? work->missing() : std::vector<int>();
  const auto what = work != nullptr ? detail::missing_text(ranks)
                                    : std::string("the device, which has not completed it");
  throw TimeoutError(concat(operation.label(), " waited ", limit.count() / 1000.0, " s for ", what),
                     {.rank = detail::lowest(ranks)});
}

Work HostedCommunicator::forward(Operation&& operation) {
  return Work(begin_task(std::move(operation), [this](detail::TaskRequest& request) {
    return [](detail::TaskRequest& forwarded, Work work) -> detail::Task {
      forwarded.set_source(co_await std::move(work));
    }(request, host().reissue(request.operation()));
  }));
}

std::shared_ptr<Communicator> HostMemoryCommunicator::split(int color, int key) {
  // A split of the host world blocks without advancing other operations. After this barrier all
  // members are in split(), so it cannot deadlock.
  barrier().wait();
  const detail::RankContext::CallGuard guard(context());
  auto part = context().or_fail<std::exception>([&] { return host().split(color, key); });
  if (part == nullptr) return nullptr;
  return handle(std::make_shared<HostMemoryCommunicator>(shared_device_context(), std::move(part)));
}

}  // namespace lockstep::device
