#pragma once

#include <c10/core/Stream.h>

namespace lockstep::inline v0_2::device {

/// The stream's cudaStream_t.
/// Throws: BackendUnavailable if LibTorch is older than 2.11, which does not tell it.
void* cuda_stream(const c10::Stream& stream);

/// Whether CUDA records the stream's work for a graph instead of running it. False for devices
/// other than CUDA.
bool is_capturing(const c10::Stream& stream);

/// Lets the calling thread query events, while any thread of the process captures work into a CUDA
/// graph. Such a query fails otherwise, and ends the capture. Has no effect without CUDA.
class RelaxedCapture {
 public:
  RelaxedCapture() noexcept;
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  int mode_ = 2;  ///< cudaStreamCaptureModeRelaxed, then the mode of the thread before
};

}  // namespace lockstep::device
