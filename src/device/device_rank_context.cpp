#include "device/device_rank_context.h"

#include <utility>

#include "device/stepped_request.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::device {
namespace {

using Clock = std::chrono::steady_clock;

/// Least time between two checks of other ranks, which cost system calls.
constexpr auto check_pause = std::chrono::milliseconds(20);

}  // namespace

DeviceRankContext::DeviceRankContext(std::string_view backend,
                                     std::shared_ptr<Communicator> host_world, c10::Device device,
                                     std::chrono::milliseconds timeout)
    : RankContext({.backend = backend,
                   .rank = host_world->rank(),
                   .timeout = timeout,
                   .policy = {.spins = 1000, .between_checks = check_pause},
                   .has_mutex = true}),
      backend_(backend),
      host_world_(std::move(host_world)),
      stream_(device),
      timeout_(timeout),
      checked_(Clock::now()) {}

template <class Fn>
void DeviceRankContext::attempt(const Fn& fn) noexcept {
  try {
    fn();
  } catch (const std::exception& error) {
    record(error);
  }
}

bool DeviceRankContext::advance() {
  if (failed()) return false;
  attempt([&] {
    for (std::size_t i = 0; i < groups().size() && !failed(); ++i) groups()[i]->poll();
    const auto now = Clock::now();
    if (now - checked_ < check_pause) return;
    checked_ = now;
    host_world_->make_progress();  // throws if the host world has failed
    check_all();
  });
  if (failed()) propagate_failure();
  return false;
}

void DeviceRankContext::check_all() {
  for (auto* group : groups()) static_cast<SteppedCommunicator*>(group)->check();
}

void DeviceRankContext::check(const detail::BackendRequest& /*operation*/) {
  attempt([&] { check_all(); });
}

void DeviceRankContext::fail(detail::FailureKind kind, const control::Failure& failure) noexcept {
  set_failure_raised();
  record(kind, failure);
}

void DeviceRankContext::record(const std::exception& error) noexcept {
  auto failure = control::failure_of(error);
  const auto* known = dynamic_cast<const Error*>(&error);
  // All ranks raise the text of the first failure, not that of the error on this rank.
  if (known != nullptr && !known->cause().empty()) failure.text = known->cause();
  record(detail::FailureKind::elsewhere, failure);
}

void DeviceRankContext::record(detail::FailureKind /*kind*/,
                               const control::Failure& failure) noexcept {
  if (in_child()) return;
  // The host world must fail first, so that other ranks get the cause before this rank ends the
  // collectives on its device.
  const std::lock_guard lock(record_mutex_);
  if (failure_.recorded()) return;
  host_world_->fail_with(failure);
  failure_.record(failure);
}

void DeviceRankContext::propagate_failure() noexcept {
  for (auto* group : groups()) static_cast<SteppedCommunicator*>(group)->abort();
}

}  // namespace lockstep::device
