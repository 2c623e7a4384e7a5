#include "device/device_communicator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <exception>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/waiting.h"
#include "core/text.h"
#include "device/comm_stream.h"
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

std::shared_ptr<Communicator> HostedCommunicator::split_host(int color, int key) {
  const detail::RankContext::CallGuard guard(context());
  return context().or_fail<std::exception>([&]() -> std::shared_ptr<Communicator> {
    auto part = host().split(color, key);
    return part == nullptr ? nullptr : handle(make(std::move(part)));
  });
}

std::shared_ptr<Communicator> HostMemoryCommunicator::split(int color, int key) {
  barrier().wait();
  return split_host(color, key);
}

DeviceCommunicator::DeviceCommunicator(std::shared_ptr<DeviceRankContext> context,
                                       std::shared_ptr<Communicator> host)
    : HostedCommunicator(std::move(context), std::move(host)),
      host_memory_(this->host().split(0, rank())) {}

void DeviceCommunicator::begin_use() {
  HostedCommunicator::begin_use();
  host_memory_ = handle(
      std::make_shared<HostMemoryCommunicator>(shared_device_context(), std::move(host_memory_)));
}

bool DeviceCommunicator::launched_elsewhere(const Communicator& group) {
  const auto* ranks = dynamic_cast<const DeviceCommunicator*>(&group);
  return ranks != nullptr && ranks->context().launched() > ranks->launched_;
}

std::shared_ptr<std::byte> DeviceCommunicator::allocate(std::size_t bytes) {
  auto memory = at::empty({static_cast<std::int64_t>(bytes)},
                          at::TensorOptions().dtype(at::kByte).device(device()));
  auto* const data = static_cast<std::byte*>(memory.mutable_data_ptr());
  return {data, [memory = std::move(memory)](std::byte*) mutable { memory.reset(); }};
}

std::shared_ptr<Communicator> DeviceCommunicator::split(int color, int key) {
  host_memory_->barrier().wait();
  return split_host(color, key);
}

at::Tensor DeviceCommunicator::on_device(const void* data, std::size_t count, DType dtype) const {
  return at::for_blob(const_cast<void*>(data), {static_cast<std::int64_t>(count)})
      .options(at::TensorOptions().dtype(scalar_type(dtype)).device(device()))
      .target_device(device())
      .make_tensor();
}

void DeviceCommunicator::multiply(const std::byte* input, std::byte* output, std::size_t count,
                                  DType dtype, double factor) {
  const at::NoGradGuard no_grad;
  auto products = on_device(output, count, dtype);
  if (input != output) products.copy_(on_device(input, count, dtype));
  products.mul_(factor);
}

Work DeviceCommunicator::begin(Operation&& operation) {
  if (operation.collective != Collective::barrier) {
    if (is_capturing(stream().current())) {
      throw InvalidArgument(
          concat(name(operation.collective), " (", backend(), ") rank ", rank(), " of ", size(),
                 ": the current stream is being captured into a CUDA graph, expected a stream "
                 "that runs its work: end the capture before operations of a group"),
          {.operation = std::string(name(operation.collective))});
    }
    return begin_on_device(std::move(operation));
  }
  // A barrier is between the ranks' programs, not between their devices.
  return forward(std::move(operation));
}

bool DeviceRequest::test() {
  const bool complete = request_->test();  // throws the failure of the world
  take_source();
  return complete || wait_ == Wait::nothing;
}

void DeviceRequest::take_source() {
  if (source() == any_source) set_source(request_->source());
}

std::vector<int> DeviceRequest::missing() const {
  const detail::RankContext::CallGuard guard(request_->context());
  return request_->missing();
}

void DeviceRequest::abandon() noexcept {
  request_->abandon();
  stream_.block_current();
}

void DeviceRequest::wait() {
  try {
    if (wait_ == Wait::request) {
      request_->wait();
    } else {
      request_->test();
    }
  } catch (...) {
    stream_.block_current();
    throw;
  }
  take_source();
  const c10::Stream current = stream_.current();
  if (current != stream_.stream()) done_->block(current);
}

}  // namespace lockstep::device
