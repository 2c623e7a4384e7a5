#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep::inline v0_2::launch {

/// A GPU that a CUDA program can use.
struct Gpu {
  std::string id;            ///< its entry in CUDA_VISIBLE_DEVICES: "2", "GPU-8932f937", "MIG-…"
  std::string name = {};     ///< "NVIDIA H100 80GB HBM3"
  std::string uuid = {};     ///< 32 hexadecimal digits
  std::uint64_t memory = 0;  ///< bytes
};

/// "2 (NVIDIA H100 80GB HBM3)" of each, separated by commas.
std::string labels(std::span<const Gpu> gpus);

/// The GPUs of this host that a process can use.
struct GpuList {
  std::vector<Gpu> gpus;  ///< in CUDA's order: cuda:0 is the first
  /// Why there are none, and what to do. With GPUs: why CUDA_VISIBLE_DEVICES shows fewer than it
  /// names.
  std::string problem;
  std::string driver;  ///< the version of CUDA that the driver supports, as "13.0"; empty: unknown
};

/// Lists the GPUs that a process sees whose CUDA_VISIBLE_DEVICES has this value, or that of this
/// process. The NVIDIA driver lists them, in a child process, because a process that called
/// cuInit() cannot use CUDA in its forked children. LOCKSTEP_LIBCUDA names its library.
GpuList find_gpus(std::optional<std::string> visible = {});

/// The entries of a list that is separated by commas, without surrounding spaces. "" has none.
std::vector<std::string> gpu_entries(const std::string& list);

/// The version and the file of the NCCL library of this host; or why it cannot be used, and what to
/// do. Loads NCCL in a child process: LOCKSTEP_NCCL, else the one that PyTorch's packages install
/// beside the folder of LibTorch's libraries, which programs load with LibTorch, else libnccl.so.2.
std::string nccl_text(const std::filesystem::path& libtorch = {});

}  // namespace lockstep::launch
