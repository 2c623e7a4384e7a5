#pragma once

#include <string>

namespace lockstep::inline v0_2::launch {

/// The NCCL library of this host.
struct NcclLibrary {
  std::string version;  ///< "2.27.3"; empty: not found
  std::string file;     ///< the file that was loaded
  std::string problem;  ///< why it cannot be used, and what to do; empty: it can
};

/// Loads LOCKSTEP_NCCL, else libnccl.so.2, in a child process, and asks for its version.
NcclLibrary find_nccl();

/// "2.19.4" for 21904, and "2.7.8" for 2708: NCCL's number has another form since 2.9.
std::string nccl_version_text(int version);

}  // namespace lockstep::launch
