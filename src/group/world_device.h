#pragma once

#include <c10/core/DeviceType.h>

#include <optional>

#include "lockstep/group.h"
#include "lockstep/init.h"

namespace lockstep::inline v0_2::detail {

/// The world whose ranks exchange memory of the host, on the device that the options or
/// LOCKSTEP_DEVICE ask for. Makes this rank's device the current one of the calling thread.
/// Ranks: all.
/// Throws: InvalidArgument, on every rank, if a rank has no such device, if there are more ranks
/// than devices on a host, or if ranks ask for different types. Else as device_group().
Group on_device_of_world(const Group& host, const InitOptions& options);

}  // namespace lockstep::detail
