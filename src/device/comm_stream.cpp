#include "device/comm_stream.h"

#include <c10/core/DeviceGuard.h>
#include <torch/version.h>

#include <exception>

#include "lockstep/error.h"

namespace lockstep::inline v0_2::device {

CommStream::CommStream(c10::Device device)
    : guard_(device.type()),
      // High priority: other ranks wait for this rank's part of a collective.
      stream_(guard_.getStreamFromGlobalPool(device, true)) {}

void CommStream::order(const c10::Stream& earlier, const c10::Stream& later) {
  if (earlier == later) return;
  c10::Event event(earlier.device_type());
  event.record(earlier);
  event.block(later);
}

void CommStream::wait_for_current() const { order(current(), stream_); }

void CommStream::block_current() const noexcept {
  try {
    order(stream_, current());
  } catch (const std::exception&) {  // the device has failed
  }
}

namespace {

/// Exchanges the capture mode of this thread.
void exchange_capture_mode(int& mode) noexcept {
  static const CudaFunction<int*> exchange("cudaThreadExchangeStreamCaptureMode");
  exchange(&mode);
}

}  // namespace

RelaxedCapture::RelaxedCapture() noexcept { exchange_capture_mode(mode_); }
RelaxedCapture::~RelaxedCapture() { exchange_capture_mode(mode_); }

bool is_complete(const c10::Event& event) {
  const RelaxedCapture relaxed;
  // An event that is queried with another current device makes CUDA use memory of that device.
  const c10::DeviceGuard on_device({event.device_type(), event.device_index()});
  return event.query();
}

void* cuda_stream(const c10::Stream& stream) {
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 11
  return stream.native_handle();
#else
  static_cast<void>(stream);
  throw BackendUnavailable("groups of GPUs: got LibTorch " TORCH_VERSION
                           ", expected 2.11 or newer");
#endif
}

bool is_capturing(const c10::Stream& stream) {
  if (stream.device_type() != c10::DeviceType::CUDA) return false;
  static const CudaFunction<void*, int*> ask("cudaStreamIsCapturing");
  constexpr int none = 0;
  int status = none;
  return ask(cuda_stream(stream), &status) && status != none;
}

}  // namespace lockstep::device
