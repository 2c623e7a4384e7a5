#include "launch/gpus.h"

#include <dlfcn.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <locale>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "core/environment.h"
#include "core/nccl_version.h"
#include "core/system/files.h"
#include "core/text.h"
#include "launch/system.h"

namespace lockstep::inline v0_2::launch {
namespace {

using detail::concat;

constexpr const char* visible_devices = "CUDA_VISIBLE_DEVICES";
constexpr auto longest_probe = std::chrono::seconds(60);

/// Loads a library.
/// Throws: std::runtime_error with the reason if that fails.
void* load(const std::string& library) {
  void* const loaded = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (loaded == nullptr) throw std::runtime_error(dlerror());
  return loaded;
}

/// A function of a loaded library.
/// Throws: std::runtime_error if it has none of this name.
template <class Function>
Function* find(void* library, const char* name) {
  auto* const found = reinterpret_cast<Function*>(dlsym(library, name));
  if (found == nullptr) throw std::runtime_error(concat("the library has no function ", name));
  return found;
}

/// The reason why the driver shows no GPU.
std::string no_gpu_text() {
  const char* const visible = std::getenv(visible_devices);
  if (visible == nullptr) return "it finds no GPU";
  return concat(visible_devices, "=", visible,
                " shows no GPU, expected GPUs of nvidia-smi -L, each once, or the variable unset");
}

/// Runs in the child process. The first line is the version of the driver, each following one
/// "BYTES UUID NAME" of a GPU. The functions need no header of CUDA: their signatures are fixed.
/// Throws: std::runtime_error if there is no GPU or no driver.
std::string ask_driver(void* driver) {
  const auto check = [&](const char* function, int error) {
    constexpr int no_device = 100;
    if (error == 0) return;
    if (error == no_device) throw std::runtime_error(no_gpu_text());
    const auto describe = [&](const char* symbol) -> std::string {
      const char* text = nullptr;
      find<int(int, const char**)>(driver, symbol)(error, &text);
      return text != nullptr ? text : "unknown error";
    };
    throw std::runtime_error(concat(function, ": ", describe("cuGetErrorName"), " (", error,
                                    "): ", describe("cuGetErrorString")));
  };
  int number = 0;
  check("cuInit", find<int(unsigned)>(driver, "cuInit")(0));
  check("cuDriverGetVersion", find<int(int*)>(driver, "cuDriverGetVersion")(&number));
  auto text = concat(number / 1000, '.', number % 1000 / 10, '\n');  // 12080 is 12.8
  check("cuDeviceGetCount", find<int(int*)>(driver, "cuDeviceGetCount")(&number));
  if (number == 0) throw std::runtime_error(no_gpu_text());
  for (int index = 0; index < number; ++index) {
    int device = 0;
    std::array<char, 256> name{};
    std::array<unsigned char, 16> uuid{};
    std::size_t memory = 0;
    check("cuDeviceGet", find<int(int*, int)>(driver, "cuDeviceGet")(&device, index));
    check("cuDeviceGetName", find<int(char*, int, int)>(driver, "cuDeviceGetName")(
                                 name.data(), static_cast<int>(name.size()) - 1, device));
    check("cuDeviceTotalMem",
          find<int(std::size_t*, int)>(driver, "cuDeviceTotalMem_v2")(&memory, device));
    check("cuDeviceGetUuid",
          find<int(unsigned char*, int)>(driver, "cuDeviceGetUuid_v2")(uuid.data(), device));
    const auto digits =
        detail::joined(uuid, "", [](unsigned char byte) { return detail::hex(byte, 2); });
    text += concat(memory, ' ', digits, ' ', name.data(), '\n');
  }
  return text;
}

}  // namespace

std::string labels(std::span<const Gpu> gpus) {
  return detail::joined(gpus, ", ",
                        [](const Gpu& gpu) { return concat(gpu.id, " (", gpu.name, ")"); });
}

std::vector<std::string> gpu_entries(const std::string& list) {
  std::vector<std::string> entries;
  if (list.find_first_not_of(" \t") == list.npos) return entries;
  for (const auto& entry : detail::lines_in(list + ',', ',')) {
    const auto begin = entry.find_first_not_of(" \t");
    entries.push_back(
        begin == entry.npos ? "" : entry.substr(begin, entry.find_last_not_of(" \t") + 1 - begin));
  }
  return entries;
}

GpuList find_gpus(std::optional<std::string> visible) {
  const std::string library(detail::variable("LOCKSTEP_LIBCUDA").value_or("libcuda.so.1"));
  const auto answer = probe(
      [&] {
        if (visible) setenv(visible_devices, visible->c_str(), 1);
        return ask_driver(load(library));
      },
      longest_probe);
  GpuList list;
  if (!answer.problem.empty()) {
    list.problem = concat("NVIDIA driver: ", answer.problem,
                          "; run nvidia-smi, and install the driver if it is missing");
    return list;
  }
  if (const char* own = std::getenv(visible_devices); own != nullptr && !visible) visible = own;
  const auto ids = visible ? gpu_entries(*visible) : std::vector<std::string>{};
  std::istringstream in(answer.text);
  in.imbue(std::locale::classic());
  std::getline(in, list.driver);
  for (Gpu gpu; in >> gpu.memory >> gpu.uuid >> std::ws && std::getline(in, gpu.name);) {
    const auto index = list.gpus.size();
    gpu.id = index < ids.size() ? ids[index] : std::to_string(index);
    list.gpus.push_back(gpu);
  }
  if (list.gpus.size() < ids.size()) {
    list.problem = concat(visible_devices, "=", *visible, " shows ",
                          detail::plural(list.gpus.size(), "GPU"), ": the list ends at '",
                          ids[list.gpus.size()], "', which names no GPU, or a second MIG device");
  }
  return list;
}

namespace {

/// Runs in the child process.
std::string ask_nccl(const std::string& library) {
  auto* const get_version = find<int(int*)>(load(library), "ncclGetVersion");
  int version = 0;
  if (const int error = get_version(&version)) {
    throw std::runtime_error(concat("ncclGetVersion: error ", error));
  }
  Dl_info info{};
  dladdr(reinterpret_cast<void*>(get_version), &info);
  return concat(detail::nccl_version_text(version), ", ", info.dli_fname,
                version < detail::oldest_nccl_version
                    ? ": too old, 2.19 or newer is needed; install a newer libnccl2, or set "
                      "LOCKSTEP_NCCL to the file of a newer one"
                    : "");
}

}  // namespace

std::string nccl_text(const std::filesystem::path& libtorch) {
  const auto named = detail::variable("LOCKSTEP_NCCL");
  const auto packaged = libtorch / "../../nvidia/nccl/lib/libnccl.so.2";
  const bool is_packaged = !libtorch.empty() && std::filesystem::exists(packaged);
  const std::string library(named.value_or(
      is_packaged ? std::filesystem::weakly_canonical(packaged).string() : "libnccl.so.2"));
  const auto answer = probe([&] { return ask_nccl(library); }, longest_probe);
  if (answer.problem.empty()) return answer.text;
  return concat("not found: ", answer.problem,
                named ? "; correct LOCKSTEP_NCCL, which names it"
                      : "; install libnccl2, or set LOCKSTEP_NCCL to the file libnccl.so.2");
}

}  // namespace lockstep::launch
