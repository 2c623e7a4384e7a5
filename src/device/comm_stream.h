#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

namespace lockstep::inline v0_2::device {

/// The stream of one rank on which its device groups copy and exchange tensors. All members are for
/// any thread.
class CommStream {
 public:
  /// device: with an index.
  explicit CommStream(c10::Device device);

  c10::Device device() const { return stream_.device(); }
  c10::Stream stream() const { return stream_; }
  /// The calling thread's current stream of the device.
  c10::Stream current() const { return guard_.getStream(device()); }

  /// Makes later work of `later` wait for the work that `earlier` has now.
  static void order(const c10::Stream& earlier, const c10::Stream& later);
  /// Makes later work of this stream wait for the work that the current stream has now.
  void wait_for_current() const;
  /// Makes later work of the current stream wait for the work that this stream has now. For the end
  /// of a failed operation, whose memory the program may release next: no effect if the device has
  /// failed.
  void block_current() const noexcept;

 private:
  c10::impl::VirtualGuardImpl guard_;
  c10::Stream stream_;
};

/// Whether the work before the event is complete. Any thread, with any current device, also while
/// another thread captures a CUDA graph.
bool is_complete(const c10::Event& event);

/// The stream's cudaStream_t.
/// Throws: BackendUnavailable if LibTorch is older than 2.11, which does not tell it.
void* cuda_stream(const c10::Stream& stream);

/// Whether CUDA records the stream's work for a graph instead of running it. False for devices
/// other than CUDA.
bool is_capturing(const c10::Stream& stream);

/// A function of the CUDA runtime that LibTorch has loaded, found by its name.
template <class... Arguments>
class CudaFunction {
 public:
  explicit CudaFunction(const char* name)
      : function_(reinterpret_cast<Function>(::dlsym(RTLD_DEFAULT, name))) {}
  /// Returns whether the call succeeded; false without CUDA. A failure does not stay CUDA's last
  /// error, which LibTorch would take for that of its next kernel.
  bool operator()(Arguments... arguments) const noexcept {
    if (function_ == nullptr) return false;
    if (function_(arguments...) == 0) return true;
    if constexpr (sizeof...(Arguments) > 0) CudaFunction<>("cudaGetLastError")();
    return false;
  }

 private:
  using Function = int (*)(Arguments...);
  Function function_;
};

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
