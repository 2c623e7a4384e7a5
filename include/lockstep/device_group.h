#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <optional>

#include "lockstep/group.h"

namespace lockstep::inline v0_2 {

/// How ranks exchange tensors of a device.
enum class DeviceBackend {
  nccl,   ///< by NCCL; each rank needs a GPU of its own
  staged  ///< through memory of the host; ranks that are processes may share a device
};

struct DeviceGroupOptions {
  DeviceBackend backend = DeviceBackend::nccl;
  std::optional<std::chrono::milliseconds> timeout =
      {};  ///< longest wait for other ranks; default LOCKSTEP_TIMEOUT, else 10 minutes
};

/// The ranks of `group`, a group on the CPU, as a group for tensors of a device.
/// device: this rank's, with an index. All ranks pass the same type.
///
/// Afterwards the program must not use `group` or another group of its world, nor make a second
/// device group of them; host() of the result is the replacement. On one host, new_group() makes a
/// world of its own. init() calls this function if the program asks for GPUs.
/// Ranks: all.
/// Throws, on every rank: InvalidArgument if the device does not exist, if ranks pass different
/// types, if thread ranks share a device or if `group` is not on the CPU.
/// BackendUnavailable if NCCL is missing, is too old or refuses the devices.
Group device_group(const Group& group, at::Device device, const DeviceGroupOptions& options = {});

}  // namespace lockstep
