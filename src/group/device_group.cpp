#include "lockstep/device_group.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "core/environment.h"
#include "core/system/process.h"
#include "core/text.h"
#include "device/nccl_communicator.h"
#include "device/staged_communicator.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {
namespace {

using detail::concat;

constexpr const char* this_operation = "device_group";

/// One rank's device. Ranks compare these before they use their devices.
struct Member {
  std::int64_t type;
  std::int64_t backend;
  /// Host, pid namespace, process and index of the device: equal for threads that share a device.
  std::array<std::int64_t, 4> place;
};

void check_device(const Group& group, at::Device device, const DeviceGroupOptions& options) {
  const auto refuse = [](const auto&... what) {
    throw InvalidArgument(concat(this_operation, ": ", what...), {.operation = this_operation});
  };
  if (!group.device().is_cpu()) refuse("got a group on ", group.device(), ", expected one on cpu");
  if (device.is_cpu() || !device.has_index()) {
    refuse("got device ", device, ", expected one other than the CPU, with an index, as cuda:0");
  }
  if (options.timeout && options.timeout->count() <= 0) {
    refuse("got a timeout of ", options.timeout->count(), " ms, expected more than 0");
  }
  if (!c10::impl::hasDeviceGuardImpl(device.type())) {
    refuse("got device ", device, ", which this build of LibTorch does not support");
  }
  const auto count = c10::impl::getDeviceGuardImpl(device.type())->deviceCount();
  if (count == 0) {
    refuse("got device ", device, ", but this process can use no device of this type: check the ",
           "driver and CUDA_VISIBLE_DEVICES with `lockstep doctor`");
  }
  if (device.index() >= count) {
    refuse("got device ", device, ", expected an index below ", static_cast<int>(count),
           ", the number of devices that this process can use");
  }
}

void check_members(const Group& group, std::span<const Member> members) {
  const auto refuse = [&](std::size_t rank, const auto&... what) {
    throw InvalidArgument(
        concat(this_operation, " rank ", group.rank(), " of ", group.size(), ": ", what...),
        {.rank = group.communicator().world_rank(static_cast<int>(rank)),
         .operation = this_operation});
  };
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    const auto& member = members[rank];
    if (member.type != members[0].type || member.backend != members[0].backend) {
      refuse(rank, "rank ", rank, " got another type of device or backend than rank 0");
    }
    for (std::size_t other = 0; other < rank; ++other) {
      if (members[other].place != member.place) continue;
      // LibTorch runs the backwards of all threads for one device in one thread, so a rank that
      // waits for another in a backward would wait for itself.
      refuse(rank, "ranks ", other, " and ", rank, " are threads that share device ",
             member.place.back(),
             ", expected a device for each thread: start ranks that share a device as processes");
    }
  }
}

/// The members of all ranks.
std::vector<Member> exchange(const Group& group, const Member& own) {
  std::vector<Member> members(static_cast<std::size_t>(group.size()));
  constexpr std::size_t fields = sizeof(Member) / sizeof(std::int64_t);
  group.communicator().all_gather(&own, members.data(), fields, DType::i64).wait();
  return members;
}

}  // namespace

Group device_group(const Group& group, at::Device device, const DeviceGroupOptions& options) {
  all_or_none(group, [&] { check_device(group, device, options); });
  const auto pid_namespace = static_cast<std::int64_t>(detail::pid_namespace());
  check_members(group,
                exchange(group, {static_cast<std::int64_t>(device.type()),
                                 static_cast<std::int64_t>(options.backend),
                                 {group.node(), pid_namespace, ::getpid(), device.index()}}));
  const auto flat = group.communicator().split(0, group.rank());
  const auto memory = group.communicator().split(0, group.rank());
  const bool by_nccl = options.backend == DeviceBackend::nccl;
  const auto context = std::make_shared<device::DeviceRankContext>(
      by_nccl ? "nccl" : "staged", flat, device,
      options.timeout.value_or(Environment::get().timeout));
  std::shared_ptr<device::DeviceCommunicator> ranks;
  if (by_nccl) {
    ranks = std::make_shared<device::NcclCommunicator>(context, flat, memory);
  } else {
    ranks = std::make_shared<device::StagedCommunicator>(context, flat, memory);
  }
  auto made = device::HostedCommunicator::handle(std::move(ranks));
  context->start_progress_thread();
  made->number_owners_with(group.communicator());
  return Group(std::move(made));
}

}  // namespace lockstep
