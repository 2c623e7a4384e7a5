#pragma once

#include <string>
#include <utility>
#include <vector>

/// A double of NCCL for the simulated device: libnccl_double.so. Its ranks are threads or processes
/// of one machine. It checks what real NCCL answers with a hang or wrong bytes.
///
/// A test links the library, or finds these functions with dlsym.
extern "C" {

/// Returns the misuses that were found since the last call, a line each, and forgets them. The text
/// is valid until the next call of this thread.
const char* nccl_double_take_faults();

/// Makes the n-th operation of this process from now on (1: the next) fail asynchronously. Its
/// kernel hangs until the communicator is aborted, and ncclCommGetAsyncError returns the result. 0
/// switches it off. The environment variable LOCKSTEP_NCCL_DOUBLE_FAIL=N:RESULT does the same at
/// the start.
void nccl_double_fail(int operation, int result);
/// The same, counting the operations of one rank.
void nccl_double_fail_rank(int rank, int operation, int result);

/// Lets a communicator without blocking be in progress for so many calls of ncclCommGetAsyncError.
void nccl_double_slow_init(int polls);

/// Lets each group of operations of such a communicator be in progress for so many calls.
void nccl_double_slow_groups(int polls);

/// Sets the version that ncclGetVersion returns, as 21903 for 2.19.3. 0: the default.
void nccl_double_set_version(int version);
}

namespace lockstep::simulation {

inline std::vector<std::string> take_nccl_faults() {
  std::vector<std::string> faults;
  std::string line;
  for (const char* at = nccl_double_take_faults(); *at != '\0'; ++at) {
    if (*at != '\n') {
      line += *at;
    } else {
      faults.push_back(std::exchange(line, {}));
    }
  }
  return faults;
}

}  // namespace lockstep::simulation
