#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/environment.h"

namespace lockstep::inline v0_2::launch {

/// A GPU that a CUDA program can use.
struct Gpu {
  std::string id;            ///< its entry in CUDA_VISIBLE_DEVICES: "2", "GPU-8932f937", "MIG-…"
  std::string name = {};     ///< "NVIDIA H100 80GB HBM3"; empty: unknown
  std::string uuid = {};     ///< as nvidia-smi prints it, without "GPU-" or "MIG-"; empty: unknown
  std::uint64_t memory = 0;  ///< bytes; 0: unknown
};

/// "2 (NVIDIA H100 80GB HBM3)", or the id alone if the name is unknown.
std::string label(const Gpu& gpu);

/// The labels, separated by commas.
std::string labels(const std::vector<Gpu>& gpus);

/// Where GPUs are looked for.
struct GpuSources {
  std::string driver{
      detail::variable("LOCKSTEP_LIBCUDA").value_or("libcuda.so.1")};  ///< for dlopen()
  std::filesystem::path devices = "/dev";                              ///< nvidia0, nvidia1, …
  std::filesystem::path proc = "/proc/driver/nvidia";                  ///< gpus/…/information
  std::chrono::milliseconds limit{60'000};  ///< longest time that the driver may take
};

/// The GPUs of this host that a process can use.
struct GpuList {
  std::vector<Gpu> gpus;  ///< in CUDA's order: cuda:0 is the first
  /// Why there are none, and what to do. With GPUs: why CUDA_VISIBLE_DEVICES shows fewer than it
  /// names, or why device files were counted instead of asking the driver.
  std::string problem;
  std::string driver;  ///< the version of CUDA that the driver supports, as "13.0"; empty: unknown
};

/// Lists the GPUs that a process sees whose CUDA_VISIBLE_DEVICES has this value (nullopt: unset).
/// The NVIDIA driver lists them, in a child process, because a process that called cuInit() cannot
/// use CUDA in its forked children. If the driver's library cannot be loaded, the list has the
/// device files, in PCI order, and visible_gpus() selects from it.
GpuList find_gpus(const GpuSources& sources, const std::optional<std::string>& visible);

/// The GPUs of `all` that CUDA shows for this value of CUDA_VISIBLE_DEVICES, in its order. CUDA's
/// rules are: The list ends at the first entry that names no GPU. A list that names a GPU twice
/// shows none. A UUID may be abbreviated. A process sees one MIG device.
std::vector<Gpu> visible_gpus(const std::vector<Gpu>& all, const std::string& visible);

/// The index in `all` of the GPU that an entry of CUDA_VISIBLE_DEVICES names; nullopt if it names
/// none, or a UUID that begins several.
std::optional<std::size_t> gpu_index(const std::vector<Gpu>& all, const std::string& entry);

/// The entries of a list that is separated by commas, without surrounding spaces. "" has none.
std::vector<std::string> gpu_entries(const std::string& list);

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
