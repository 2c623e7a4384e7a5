#include "device/device_rank_context.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <future>
#include <thread>
#include <vector>

#include "core/deadline.h"
#include "device/comm_stream.h"
#include "device/device_communicator.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::device {
namespace {

using Clock = std::chrono::steady_clock;

/// Longest time from the end of a rank's connections to that of its process.
constexpr auto time_of_end = std::chrono::milliseconds(2000);
/// Longest wait for kernels to end after a failure.
constexpr auto time_of_abort = std::chrono::seconds(10);

}  // namespace

DeviceRankContext::DeviceRankContext(std::string_view backend,
                                     const std::shared_ptr<Communicator>& host_world,
                                     c10::Device device, std::chrono::milliseconds timeout)
    : ComposedRankContext({.backend = backend,
                           .rank = host_world->rank(),
                           .timeout = timeout,
                           .policy = {.spins = 1000, .between_checks = check_pause},
                           .has_mutex = true},
                          {host_world}),
      stream_(device) {}

// An event that is queried without a device makes CUDA use memory of the first one.
void DeviceRankContext::begin_progress_thread() noexcept {
  const auto device = stream_.device();
  c10::impl::VirtualGuardImpl(device.type()).uncheckedSetDevice(device);
}

bool DeviceRankContext::advance() {
  if (failed()) return false;
  const RelaxedCapture relaxed;
  const bool advanced = RankContext::advance();
  const auto now = Clock::now();
  if (!failed() && now - checked_ >= check_pause) {
    checked_ = now;
    attempt([&] {
      advance_worlds();
      check_requests();
    });
  }
  if (failed()) propagate_failure();
  return advanced;
}

void DeviceRankContext::find_cause(const std::exception& error) {
  const auto* known = dynamic_cast<const Error*>(&error);
  if (known != nullptr && !known->cause().empty()) return;  // of the host world
  detail::Deadline deadline(time_of_end);
  for (; !deadline.passed(); std::this_thread::sleep_for(check_pause)) {
    advance_worlds();
    worlds().front()->check_processes("the device reported an error");
  }
}

void DeviceRankContext::propagate_failure() noexcept {
  std::vector<std::future<void>> ends;
  // All begin before the first is awaited: a kernel may be behind one of another group.
  for (auto* group : groups()) ends.push_back(static_cast<HostedCommunicator*>(group)->abort());
  const auto longest = Clock::now() + time_of_abort;
  for (const auto& end : ends) {
    if (end.valid()) end.wait_until(longest);
  }
}

}  // namespace lockstep::device
