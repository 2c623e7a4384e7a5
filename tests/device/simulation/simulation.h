#pragma once

#include <c10/core/DeviceType.h>

#include <cstdint>
#include <string>
#include <vector>

/// A simulated accelerator: the LibTorch device "sim" (PrivateUse1), which a machine without a GPU
/// has.
///
/// Its streams are threads, and each ATen operator runs the CPU's kernel later, on the thread of
/// the current stream. The host cannot touch its memory: an access is a SIGSEGV. Results are the
/// CPU's, bit for bit, if the program orders its streams correctly. A check reports every access
/// that no event orders, also where the result happens to be right.
namespace lockstep::simulation {

/// Devices sim:0 to sim:7 of each process.
constexpr int devices = 8;

/// Registers the device. A second call does nothing. LibTorch then uses one thread an operator, as
/// the streams are threads already.
void install();

/// PrivateUse1. It is CUDA where tools/check-cuda-packages has put devices of that type in place of
/// these.
c10::DeviceType device_type();
/// "sim", or "cuda".
const char* type_name();

/// Returns the unordered accesses that were found since the last call, and forgets them. The list
/// is empty for a correct program.
std::vector<std::string> take_races();

/// Sets the longest random pause before each task of a stream, in microseconds (default: 0).
void set_delay(int microseconds);

/// Sets a pause before each task of each stream of a device.
void slow_down(int device, int microseconds);

/// The work that this process has given a device since it started.
struct Counts {
  std::uint64_t kernels = 0;                ///< operators, among them copies within a device
  std::uint64_t collectives = 0;            ///< kernels of the double of NCCL
  std::uint64_t copies = 0;                 ///< copies between host and device
  std::uint64_t host_synchronisations = 0;  ///< waits of the host for a stream, event or device
};
Counts counts(int device);
Counts operator-(const Counts& after, const Counts& before);

/// Begins what CUDA calls a capture in global mode, of no stream. Until its end, a thread that
/// queries an event without relaxing its mode gets an exception, and invalidates the capture.
void begin_capture();
/// Returns whether the capture is valid.
bool end_capture();

/// Lets each order of a stream after an event fail, as on a device that has failed.
void fail_waits(bool fails);

/// Waits until every stream of every device is idle. Throws the first exception of a task.
void synchronize_all();

/// Waits for what an earlier program has left on the devices, and forgets its exceptions and races.
void reset();

}  // namespace lockstep::simulation
