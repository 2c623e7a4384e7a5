#include "lockstep/device_group.h"

#include <c10/core/Device.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "core/environment.h"
#include "core/operation_error.h"
#include "core/system/process.h"
#include "core/text.h"
#include "device/nccl_communicator.h"
#include "device/staged_communicator.h"
#include "group/gather.h"
#include "group/world_device.h"
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
  const auto refuse = [](const auto&... what) { detail::throw_invalid(this_operation, what...); };
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

}  // namespace

Group device_group(const Group& group, at::Device device, const DeviceGroupOptions& options) {
  all_or_none(group, [&] { check_device(group, device, options); });
  const auto pid_namespace = static_cast<std::int64_t>(detail::pid_namespace());
  const Member own{.type = static_cast<std::int64_t>(device.type()),
                   .backend = static_cast<std::int64_t>(options.backend),
                   .place = {group.node(), pid_namespace, ::getpid(), device.index()}};
  check_members(group, detail::gather_values(own, group));
  const auto split = group.communicator().split(0, group.rank());
  // Keeps the group, too: its destructor must not change the groups of the host's world while the
  // progress thread reads them.
  const std::shared_ptr<Communicator> flat(split.get(), [split, group](Communicator*) {});
  const bool by_nccl = options.backend == DeviceBackend::nccl;
  const auto context = std::make_shared<device::DeviceRankContext>(
      by_nccl ? "nccl" : "staged", flat, device,
      options.timeout.value_or(Environment::get().timeout));
  std::shared_ptr<device::DeviceCommunicator> ranks;
  if (by_nccl) {
    ranks = std::make_shared<device::NcclCommunicator>(context, flat);
  } else {
    ranks = std::make_shared<device::StagedCommunicator>(context, flat);
  }
  auto made = device::HostedCommunicator::handle(std::move(ranks));
  context->start_progress_thread();
  made->number_owners_with(group.communicator());
  return Group(std::move(made));
}

}  // namespace lockstep

namespace lockstep::inline v0_2::detail {
namespace {

/// Number of devices of a type that this process can use.
std::int64_t count_of(at::DeviceType type) {
  if (!c10::impl::hasDeviceGuardImpl(type)) return 0;
  return c10::impl::getDeviceGuardImpl(type)->deviceCount();
}

/// The type that this rank asks for; none for automatic.
std::optional<at::DeviceType> requested(const InitOptions& options) {
  if (options.device) return options.device;
  const auto text = variable("LOCKSTEP_DEVICE").value_or("");
  if (text.empty() || text == "auto") return std::nullopt;
  try {
    const at::Device device{std::string(text)};
    if (!device.has_index()) return device.type();
  } catch (const std::exception&) {
    // No device has this name.
  }
  throw_invalid("init", "got LOCKSTEP_DEVICE=", text,
                ", expected auto, cpu, cuda, or the name of another device type of LibTorch");
}

/// The backend of ranks that share devices, or empty if each rank needs a device of its own.
std::string_view sharing_backend() {
  const auto share = variable("LOCKSTEP_SHARE_GPUS").value_or("");
  if (share.empty() || share == "0") return "";
  if (share == "1") return "staged";
  if (share == "nccl") return share;
  throw_invalid("init", "got LOCKSTEP_SHARE_GPUS=", share,
                ", expected 1 (through host memory) or nccl");
}

DeviceBackend backend_of(at::DeviceType type) {
  const auto given = variable("LOCKSTEP_DEVICE_BACKEND").value_or("");
  const auto shared = sharing_backend();
  if (!shared.empty() && !given.empty() && given != shared) {
    throw_invalid("init", "got LOCKSTEP_DEVICE_BACKEND=", given,
                  " and ranks that share GPUs by another backend, ", shared,
                  " (LOCKSTEP_SHARE_GPUS), expected one of the two");
  }
  const auto backend = given.empty() ? shared : given;
  if (backend == "nccl") return DeviceBackend::nccl;
  if (backend == "staged") return DeviceBackend::staged;
  if (!backend.empty()) {
    throw_invalid("init", "got LOCKSTEP_DEVICE_BACKEND=", backend, ", expected nccl or staged");
  }
  return type == at::kCUDA ? DeviceBackend::nccl : DeviceBackend::staged;
}

/// The device that a rank asks for, and those that it has.
struct Wish {
  std::int64_t type = -1;  ///< -1 for automatic
  std::int64_t devices = 0;
};

std::string name_of(std::int64_t type) {
  return type < 0 ? "auto" : c10::DeviceTypeName(static_cast<at::DeviceType>(type), true);
}

/// The type that all ranks use, derived from all wishes alike on every rank.
at::DeviceType agreed_type(const Group& host, const std::vector<Wish>& wishes) {
  const auto prefix = concat("rank ", host.rank(), " of ", host.size(), ": ");
  for (std::size_t rank = 1; rank < wishes.size(); ++rank) {
    if (wishes[rank].type == wishes[0].type) continue;
    throw_invalid("init", prefix, "got device ", name_of(wishes[0].type), " on rank 0 and ",
                  name_of(wishes[rank].type), " on rank ", rank,
                  ", expected the same on all ranks");
  }
  const bool is_automatic = wishes[0].type < 0;
  const auto has_none = [](const Wish& wish) { return wish.devices == 0; };
  if (is_automatic && std::ranges::all_of(wishes, has_none)) return at::kCPU;
  const auto type = is_automatic ? at::kCUDA : static_cast<at::DeviceType>(wishes[0].type);
  const auto without = std::ranges::find_if(wishes, has_none);
  if (without != wishes.end()) {
    throw_invalid("init", prefix, "got no ", c10::DeviceTypeName(type, true), " device on rank ",
                  without - wishes.begin(),
                  c10::impl::hasDeviceGuardImpl(type)
                      ? ", expected one: see `lockstep doctor`, or set LOCKSTEP_DEVICE=cpu"
                      : ", and this build of LibTorch does not support it, expected a build that "
                        "does, or LOCKSTEP_DEVICE=cpu");
  }
  return type;
}

at::Device device_of_rank(const Group& host, at::DeviceType type) {
  const auto devices = count_of(type);
  const int local = host.local_rank();
  // Some launchers show each rank one device only. NCCL detects if it is the same one.
  if (local >= devices && sharing_backend().empty() && devices > 1) {
    throw_invalid("init", "got ", host.local_size(), " ranks and ", devices, ' ',
                  c10::DeviceTypeName(type, true),
                  " devices on this host, expected a device for each rank: start ", devices,
                  " ranks for each host, share the devices (lockstep run --share-gpus or "
                  "LOCKSTEP_SHARE_GPUS=1), or train on the CPU (LOCKSTEP_DEVICE=cpu)");
  }
  return {type, static_cast<c10::DeviceIndex>(local % devices)};
}

}  // namespace

Group on_device_of_world(const Group& host, const InitOptions& options) {
  const auto wish = requested(options);
  if (wish == at::kCPU) return host;
  // Ranks run the same build: without CUDA, none of them can get a GPU by default.
  if (!wish && !c10::impl::hasDeviceGuardImpl(at::kCUDA)) return host;
  const Wish own{.type = wish ? static_cast<std::int64_t>(*wish) : -1,
                 .devices = count_of(wish.value_or(at::kCUDA))};
  const auto type = agreed_type(host, gather_values(own, host));
  if (type == at::kCPU) return host;
  at::Device device = type;
  DeviceGroupOptions device_options{.timeout = options.timeout};
  all_or_none(host, [&] {
    device_options.backend = backend_of(type);
    device = device_of_rank(host, type);
  });
  c10::impl::getDeviceGuardImpl(type)->setDevice(device);
  return device_group(host, device, device_options);
}

}  // namespace lockstep::detail
