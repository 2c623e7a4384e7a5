#include "device/comm_stream.h"

#include <c10/core/DeviceGuard.h>

namespace lockstep::inline v0_2::device {

CommStream::CommStream(c10::Device device)
    : device_(device),
      guard_(device.type()),
      // High priority: other ranks wait for this rank's part of a collective.
      stream_(guard_.getStreamFromGlobalPool(device, true)) {}

void CommStream::order(const c10::Stream& earlier, const c10::Stream& later) {
  if (earlier == later) return;
  c10::Event event(earlier.device_type());
  event.record(earlier);
  event.block(later);
}

void CommStream::wait_for_current() const { order(current(), stream_); }

void CommStream::block_current() const { order(stream_, current()); }

}  // namespace lockstep::device
