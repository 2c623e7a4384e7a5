// A stand-in for NVIDIA's driver library and for NCCL, for machines without a GPU. Environment
// variables describe the machine:
//   FAKE_CUDA_NAMES   names of the GPUs, separated by '|'; unset: no GPU
//   FAKE_CUDA_RESULT  what cuInit() returns, as 803; or "crash", or "hang"
//   FAKE_CUDA_LOG     a file to which cuInit() appends the pid of its process
//   FAKE_NCCL_VERSION what ncclGetVersion() gives
// GPU i has the UUID of which every digit is i + 1, and i + 1 GiB. CUDA_VISIBLE_DEVICES is read as
// CUDA's documentation says.

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr int success = 0;
constexpr int no_device = 100;
constexpr int invalid_device = 101;
constexpr int system_driver_mismatch = 803;

std::vector<std::string> names;  // of all GPUs
std::vector<int> shown;          // their numbers, in the order of CUDA_VISIBLE_DEVICES

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

/// The number of the GPU that the entry names, or -1.
int number_of(const std::string& entry) {
  if (entry.rfind("GPU-", 0) == 0) {
    // All digits of a UUID are equal, so one digit names the GPU.
    if (entry.size() < 5 || entry.find_first_not_of(entry[4], 4) < 12) return -1;
    const int number = entry[4] - '1';
    return number < static_cast<int>(names.size()) ? number : -1;
  }
  char* end = nullptr;
  const long number = std::strtol(entry.c_str(), &end, 10);
  if (end == entry.c_str() || number < 0 || number >= static_cast<long>(names.size())) return -1;
  return static_cast<int>(number);
}

void show_gpus() {
  shown.clear();
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) {
    for (std::size_t i = 0; i < names.size(); ++i) shown.push_back(static_cast<int>(i));
    return;
  }
  const bool by_uuid = std::strncmp(visible, "GPU-", 4) == 0;
  std::set<int> seen;
  for (const auto& entry : split(visible, ',')) {
    if (entry.rfind("MIG-", 0) == 0) {
      shown.push_back(0);
      return;
    }
    if ((entry.rfind("GPU-", 0) == 0) != by_uuid) return;
    const int number = number_of(entry);
    if (number < 0) return;
    if (!seen.insert(number).second) {
      shown.clear();
      return;
    }
    shown.push_back(number);
  }
}

}  // namespace

extern "C" {

int cuInit(unsigned flags) {
  if (flags != 0) return 1;
  if (const char* log = std::getenv("FAKE_CUDA_LOG")) {
    std::ofstream(log, std::ios::app) << getpid() << '\n';
  }
  if (const char* result = std::getenv("FAKE_CUDA_RESULT")) {
    if (std::strcmp(result, "crash") == 0) std::abort();
    if (std::strcmp(result, "hang") == 0) {
      for (;;) pause();
    }
    return std::atoi(result);
  }
  const char* list = std::getenv("FAKE_CUDA_NAMES");
  names = list != nullptr ? split(list, '|') : std::vector<std::string>();
  show_gpus();
  return shown.empty() ? no_device : success;
}

int cuDriverGetVersion(int* version) {
  *version = 13000;
  return success;
}

int cuDeviceGetCount(int* count) {
  *count = static_cast<int>(shown.size());
  return success;
}

int cuDeviceGet(int* device, int ordinal) {
  if (ordinal < 0 || ordinal >= static_cast<int>(shown.size())) return invalid_device;
  *device = ordinal;
  return success;
}

int cuDeviceGetName(char* name, int length, int device) {
  const auto& own = names[static_cast<std::size_t>(shown[static_cast<std::size_t>(device)])];
  std::strncpy(name, own.c_str(), static_cast<std::size_t>(length));
  return success;
}

int cuDeviceTotalMem_v2(std::size_t* bytes, int device) {
  *bytes = static_cast<std::size_t>(shown[static_cast<std::size_t>(device)] + 1) << 30;
  return success;
}

int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  std::memset(uuid, 0x11 * (shown[static_cast<std::size_t>(device)] + 1), 16);
  return success;
}

int cuGetErrorName(int error, const char** name) {
  if (error != system_driver_mismatch) return 1;
  *name = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH";
  return success;
}

int cuGetErrorString(int error, const char** text) {
  if (error != system_driver_mismatch) return 1;
  *text = "system has unsupported display driver / cuda driver combination";
  return success;
}

int ncclGetVersion(int* version) {
  const char* text = std::getenv("FAKE_NCCL_VERSION");
  if (text == nullptr) return 1;
  *version = std::atoi(text);
  return success;
}
}
