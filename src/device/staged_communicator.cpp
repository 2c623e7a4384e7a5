#include "device/staged_communicator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>

#include <exception>
#include <functional>
#include <thread>

#include "comm/waiting.h"
#include "core/deadline.h"
#include "device/comm_stream.h"
#include "device/device_communicator.h"

namespace lockstep::inline v0_2::device {

/// The host's side of one operation. Input and output are the same tensor for an operation in
/// place.
struct StagedCommunicator::Transfer {
  bool has_input() const { return is_complete(copied); }

  at::Tensor input;
  at::Tensor output;
  c10::Event copied;                 ///< the input is on the host
  std::shared_ptr<c10::Event> done;  ///< the output is on the device
};

at::Tensor StagedCommunicator::pinned(std::size_t count, DType dtype) const {
  return at::empty({static_cast<std::int64_t>(count)},
                   at::TensorOptions().dtype(scalar_type(dtype)).pinned_memory(true));
}

void StagedCommunicator::copy_to_host(const Operation& operation, Transfer& transfer) {
  const auto elements = operation.buffers(rank(), size());
  const bool in_place = operation.input == operation.output && elements.input == elements.output;
  if (elements.input > 0) transfer.input = pinned(elements.input, operation.dtype);
  if (elements.output > 0) {
    transfer.output = in_place ? transfer.input : pinned(elements.output, operation.dtype);
  }
  const bool is_read = elements.input > 0 &&
                       (operation.collective != Collective::broadcast || operation.peer == rank());
  if (is_read) {
    transfer.input.copy_(on_device(operation.input, elements.input, operation.dtype), true);
  }
}

detail::Task StagedCommunicator::exchange(detail::TaskRequest& request,
                                          std::shared_ptr<Transfer> transfer) {
  detail::Turn turn(exchanges_);
  co_await detail::until(std::bind_front(&Transfer::has_input, transfer.get()));
  co_await turn;
  request.set_source(co_await exchange_on_host(request.operation(), *transfer));
  copy_to_device(request.operation(), transfer);
}

Work StagedCommunicator::exchange_on_host(const Operation& operation, const Transfer& transfer) {
  Operation on_host = operation;
  const auto data = [](const at::Tensor& tensor) {
    return tensor.defined() ? static_cast<std::byte*>(tensor.mutable_data_ptr()) : nullptr;
  };
  on_host.input = data(transfer.input);
  on_host.output = data(transfer.output);
  on_host.issue.owner = {};
  return host().reissue(on_host);
}

void StagedCommunicator::copy_to_device(const Operation& operation,
                                        const std::shared_ptr<Transfer>& transfer) {
  const bool is_written =
      transfer->output.defined() &&
      (operation.collective != Collective::broadcast || operation.peer != rank());
  if (is_written) {
    const at::NoGradGuard no_grad;
    const c10::StreamGuard guard(stream().stream());
    const auto count = static_cast<std::size_t>(transfer->output.numel());
    on_device(operation.output, count, operation.dtype).copy_(transfer->output, true);
  }
  transfer->done->record(stream().stream());
  copying_.push_back(transfer);
}

Work StagedCommunicator::begin_on_device(Operation&& operation) {
  const at::NoGradGuard no_grad;
  auto transfer = DeviceRankContext::share(
      Transfer{.input = {},
               .output = {},
               .copied = c10::Event(device().type()),
               .done = DeviceRankContext::share(c10::Event(device().type()))});
  stream().wait_for_current();
  auto begun = begin_task(std::move(operation), [&](detail::TaskRequest& request) {
    return context().or_cause([&] {
      const c10::StreamGuard guard(stream().stream());
      copy_to_host(request.operation(), *transfer);
      transfer->copied.record(stream().stream());
      return exchange(request, transfer);
    });
  });
  return Work(std::make_shared<DeviceRequest>(std::move(begun), transfer->done, stream(),
                                              DeviceRequest::Wait::request));
}

StagedCommunicator::~StagedCommunicator() {
  // A device that does not complete its copies within this time has failed.
  detail::Deadline deadline(std::chrono::seconds(10));
  try {
    while (!context().ended() && !deadline.passed()) {
      check_device();
      if (copying_.empty()) return;
      std::this_thread::sleep_for(detail::poll_pause);
    }
  } catch (const std::exception&) {
    // The device has failed.
  }
}

void StagedCommunicator::check_device() {
  while (!copying_.empty() && is_complete(*copying_.front()->done)) copying_.pop_front();
}

}  // namespace lockstep::device
