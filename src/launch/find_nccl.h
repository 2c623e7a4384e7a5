#pragma once

#include <filesystem>
#include <string>

namespace lockstep::inline v0_2::launch {

/// The NCCL library of this host.
struct FoundNccl {
  std::string version;  ///< "2.27.3"; empty: not found
  std::string file;     ///< the file that was loaded
  std::string problem;  ///< why it cannot be used, and what to do; empty: it can
};

/// Loads NCCL in a child process, and asks for its version: LOCKSTEP_NCCL, else the one that
/// PyTorch's packages install beside the folder of LibTorch's libraries, which programs load with
/// LibTorch, else libnccl.so.2.
FoundNccl find_nccl(const std::filesystem::path& libtorch = {});

}  // namespace lockstep::launch
