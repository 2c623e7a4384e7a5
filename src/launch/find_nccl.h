#pragma once

#include <string>

namespace lockstep::inline v0_2::launch {

/// The NCCL library of this host.
struct FoundNccl {
  std::string version;  ///< "2.27.3"; empty: not found
  std::string file;     ///< the file that was loaded
  std::string problem;  ///< why it cannot be used, and what to do; empty: it can
};

/// Loads LOCKSTEP_NCCL, else libnccl.so.2, in a child process, and asks for its version.
FoundNccl find_nccl();

}  // namespace lockstep::launch
