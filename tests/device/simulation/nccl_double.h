#pragma once

#include <atomic>
#include <string>
#include <vector>

namespace lockstep::simulation {

/// What tests set and read of the double of NCCL for the simulated device, libnccl_double.so. Its
/// ranks are threads or processes of one machine. It checks what real NCCL answers with a hang or
/// wrong bytes.
struct NcclDouble {
  /// The n-th operation of a rank 1 from now on (1: the next) fails asynchronously: its kernel
  /// hangs until the communicator is aborted, and ncclCommGetAsyncError returns ncclRemoteError. 0:
  /// none fails.
  std::atomic<int> failing_operation{0};
  /// Calls of ncclCommGetAsyncError for which the start of a communicator is in progress.
  std::atomic<int> slow_init{0};
  /// The same for each group of operations.
  std::atomic<int> slow_groups{0};
  /// What ncclGetVersion returns, as 21903 for 2.19.3.
  std::atomic<int> version{22907};
  /// Returns the misuses that were found since the last call, and forgets them.
  std::vector<std::string> (*take_faults)();
};

}  // namespace lockstep::simulation

/// The double in this process. A test links the library, or finds this function with dlsym.
extern "C" lockstep::simulation::NcclDouble* nccl_double();
