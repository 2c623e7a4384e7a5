// A double of libcudart.so.13 over the simulated device: the functions that libc10_cuda.so of
// LibTorch 2.13.0 imports.
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstring>
#include <exception>
#include <new>

#include "tests/device/simulation/runtime.h"

namespace simulation = lockstep::simulation;

namespace {

constexpr std::size_t memory = std::size_t{4} << 30;

simulation::Stream* stream_of(cudaStream_t stream) {
  if (stream == nullptr) return simulation::stream(simulation::current_device(), 0);
  return reinterpret_cast<simulation::Stream*>(stream);
}

simulation::Event* event_of(cudaEvent_t event) {
  return reinterpret_cast<simulation::Event*>(event);
}

/// A wait throws what a task has thrown.
template <class Fn>
cudaError_t result_of(const Fn& wait) {
  try {
    wait();
    return cudaSuccess;
  } catch (const std::exception&) {
    return cudaErrorLaunchFailure;
  }
}

void* bytes_of(const void* at) {
  return simulation::is_device_memory(at) ? simulation::shadow(at) : const_cast<void*>(at);
}

}  // namespace

// LibTorch asks for these only where it shares memory with processes or devices, captures graphs,
// measures times or allocates in the order of streams.
#define NOT_SUPPORTED(name, ...) \
  cudaError_t name(__VA_ARGS__) { return cudaErrorNotSupported; }

extern "C" {

NOT_SUPPORTED(cudaDeviceEnablePeerAccess, int, unsigned)
NOT_SUPPORTED(cudaDeviceGetDefaultMemPool, cudaMemPool_t*, int)
NOT_SUPPORTED(cudaMemPoolGetAttribute, cudaMemPool_t, cudaMemPoolAttr, void*)
NOT_SUPPORTED(cudaMemPoolSetAttribute, cudaMemPool_t, cudaMemPoolAttr, void*)
NOT_SUPPORTED(cudaMemPoolSetAccess, cudaMemPool_t, const cudaMemAccessDesc*, size_t)
NOT_SUPPORTED(cudaMemPoolTrimTo, cudaMemPool_t, size_t)
NOT_SUPPORTED(cudaMemcpyPeerAsync, void*, int, const void*, int, size_t, cudaStream_t)
NOT_SUPPORTED(cudaStreamQuery, cudaStream_t)
NOT_SUPPORTED(cudaMallocAsync, void**, size_t, cudaStream_t)
NOT_SUPPORTED(cudaFreeAsync, void*, cudaStream_t)
NOT_SUPPORTED(cudaGraphNodeGetDependencies, cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*,
              size_t*)
NOT_SUPPORTED(cudaEventElapsedTime, float*, cudaEvent_t, cudaEvent_t)
NOT_SUPPORTED(cudaIpcGetMemHandle, cudaIpcMemHandle_t*, void*)
NOT_SUPPORTED(cudaIpcOpenMemHandle, void**, cudaIpcMemHandle_t, unsigned)
NOT_SUPPORTED(cudaIpcCloseMemHandle, void*)

cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  *function = nullptr;
  if (found != nullptr) *found = cudaDriverEntryPointSymbolNotFound;
  return cudaErrorNotSupported;
}

cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "an error of the double of CUDA"; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the double of CUDA"; }

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = simulation::devices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = simulation::current_device();
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= simulation::devices) return cudaErrorInvalidDevice;
  simulation::set_current_device(device);
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "simulated");
  properties->major = 9;
  properties->totalGlobalMem = memory;
  properties->multiProcessorCount = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  return result_of([] { simulation::synchronize_device(simulation::current_device()); });
}

cudaError_t cudaMalloc(void** at, size_t bytes) {
  try {
    *at = simulation::allocate(simulation::current_device(), bytes);
    return cudaSuccess;
  } catch (const std::bad_alloc&) {
    return cudaErrorMemoryAllocation;
  }
}
cudaError_t cudaFree(void* at) {
  if (at == nullptr) return cudaSuccess;
  const auto result = cudaDeviceSynchronize();
  simulation::release(at);
  return result;
}
cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  *available = *total = memory;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  simulation::enqueue(stream_of(stream), "cudaMemcpyAsync", simulation::Kind::copy,
                      {{from, bytes, false}, {to, bytes, true}},
                      [=] { std::memcpy(bytes_of(to), bytes_of(from), bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return cudaStreamSynchronize(nullptr);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  static std::atomic<int> next{1};  // 0 is the default stream
  *stream = reinterpret_cast<cudaStream_t>(
      simulation::stream(simulation::current_device(), next.fetch_add(1)));
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return result_of([&] { simulation::synchronize(stream_of(stream)); });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return result_of([&] { simulation::wait(stream_of(stream), event_of(event)); });
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status,
                                     unsigned long long*, cudaGraph_t*, const cudaGraphNode_t**,
                                     const cudaGraphEdgeData**, size_t*) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  int exchanged = *mode;
  simulation::exchange_capture_mode(exchanged);
  *mode = static_cast<cudaStreamCaptureMode>(exchanged);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(simulation::make_event());
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  simulation::destroy(event_of(event));
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  simulation::record(event_of(event), stream_of(stream));
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  try {
    return simulation::done(event_of(event)) ? cudaSuccess : cudaErrorNotReady;
  } catch (const std::exception&) {
    return cudaErrorStreamCaptureUnsupported;
  }
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return result_of([&] { simulation::synchronize(event_of(event)); });
}

}  // extern "C"
