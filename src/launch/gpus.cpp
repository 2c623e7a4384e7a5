#include "launch/gpus.h"

#include <dlfcn.h>
#include <strings.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <locale>
#include <map>
#include <set>
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

/// Results of the driver's functions that have a remedy.
constexpr int no_device = 100;
const std::map<int, const char*> remedies{
    {34,
     "the library is the stub of the CUDA toolkit, not the driver. Remove its folder from "
     "LD_LIBRARY_PATH"},
    {802, "on machines with NVSwitch start nvidia-fabricmanager"},
    {803,
     "the driver's library and its kernel module are of different versions. Restart the "
     "machine, or install one version"},
    {804,
     "the package cuda-compat does not support this GPU. Remove its folder from "
     "LD_LIBRARY_PATH"},
    {999, "load the kernel module again: rmmod nvidia_uvm, modprobe nvidia_uvm"}};

/// Loads a library; null with the reason if that fails.
void* load(const std::string& library, std::string& problem) {
  void* const loaded = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  const char* const error = loaded == nullptr ? dlerror() : nullptr;
  problem = error != nullptr ? error : library;
  return loaded;
}

/// A function of a loaded library; null if it has none of this name.
template <class Function>
Function* find(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

/// The functions of the NVIDIA driver, which need no header of CUDA: their signatures are fixed.
class Driver {
 public:
  explicit Driver(void* library) : library_(library) {}

  /// Lines: "driver 13000", "gpu BYTES UUID NAME", or "none CODE TEXT" for an error.
  /// Throws: std::runtime_error if the library is no CUDA driver.
  std::string list() const {
    auto* const init = needed<int(unsigned)>("cuInit");
    auto* const driver_version = needed<int(int*)>("cuDriverGetVersion");
    auto* const get_count = needed<int(int*)>("cuDeviceGetCount");
    auto* const get_device = needed<int(int*, int)>("cuDeviceGet");
    auto* const get_name = needed<int(char*, int, int)>("cuDeviceGetName");
    auto* const get_memory = needed<int(std::size_t*, int)>("cuDeviceTotalMem_v2");
    int version = 0;
    std::string text;
    if (driver_version(&version) == 0) text += concat("driver ", version, '\n');
    int number = 0;
    if (const int error = init(0)) return text + failure("cuInit", error);
    if (const int error = get_count(&number)) return text + failure("cuDeviceGetCount", error);
    if (number == 0) return text + failure("cuDeviceGetCount", no_device);
    for (int index = 0; index < number; ++index) {
      int device = 0;
      std::array<char, 256> name{};
      std::size_t memory = 0;
      if (const int error = get_device(&device, index)) return text + failure("cuDeviceGet", error);
      if (get_name(name.data(), static_cast<int>(name.size()) - 1, device) != 0) name[0] = '\0';
      if (get_memory(&memory, device) != 0) memory = 0;
      text += concat("gpu ", memory, ' ', uuid(device), ' ', name.data(), '\n');
    }
    return text;
  }

 private:
  template <class Function>
  Function* needed(const char* name) const {
    auto* const found = find<Function>(library_, name);
    if (found == nullptr) throw std::runtime_error(concat("it has no function ", name));
    return found;
  }

  /// "8932f937-d72c-4106-c12f-20bd9faed9f6", or "-" if the driver does not tell it.
  std::string uuid(int device) const {
    std::array<unsigned char, 16> bytes{};
    for (const char* symbol : {"cuDeviceGetUuid_v2", "cuDeviceGetUuid"}) {
      auto* const get = find<int(unsigned char*, int)>(library_, symbol);
      if (get == nullptr || get(bytes.data(), device) != 0) continue;
      std::string text;
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
        text += detail::hex(bytes[i], 2);
      }
      return text;
    }
    return "-";
  }

  std::string failure(const char* function, int error) const {
    const auto describe = [&](const char* symbol) -> std::string {
      auto* const get = find<int(int, const char**)>(library_, symbol);
      const char* text = nullptr;
      return get != nullptr && get(error, &text) == 0 && text != nullptr ? text : "";
    };
    const auto name = describe("cuGetErrorName");
    const auto meaning = describe("cuGetErrorString");
    return concat("none ", error, ' ', function, ": ", name.empty() ? "error" : name, " (", error,
                  ")", meaning.empty() ? "" : ": ", meaning, '\n');
  }

  void* library_;
};

/// Runs in the child process. "missing TEXT" if the library cannot be loaded.
std::string ask_driver(const std::string& library, const std::optional<std::string>& visible) {
  if (visible) {
    setenv(visible_devices, visible->c_str(), 1);
  } else {
    unsetenv(visible_devices);
  }
  std::string problem;
  void* const loaded = load(library, problem);
  return loaded == nullptr ? concat("missing ", problem, '\n') : Driver(loaded).list();
}

/// Returns the reason why there is no GPU, and the remedy. `said` is the driver's own text.
std::string no_gpu_text(int code, const std::string& said,
                        const std::optional<std::string>& visible) {
  const auto known = remedies.find(code);
  if (known != remedies.end()) return concat(said, "; ", known->second);
  if (code != no_device) return concat(said, "; nvidia-smi may say more");
  if (!visible) return "the NVIDIA driver finds no GPU; run nvidia-smi";
  if (gpu_entries(*visible).empty()) {
    return concat(visible_devices, " is empty, which hides every GPU; unset it");
  }
  return concat(visible_devices, "=", *visible,
                " shows no GPU; name GPUs of nvidia-smi -L, each once, or unset it");
}

/// The GPUs that have a device file, in PCI order if the kernel module describes them.
std::vector<Gpu> gpus_of_files(const GpuSources& sources) {
  std::error_code none;
  std::vector<Gpu> gpus;
  std::set<std::filesystem::path> described;
  for (const auto& entry : std::filesystem::directory_iterator(sources.proc / "gpus", none)) {
    described.insert(entry.path());
  }
  for (const auto& folder : described) {
    auto fields = detail::fields(folder / "information");
    // A container may have the device files of some GPUs only.
    if (!std::filesystem::exists(sources.devices / ("nvidia" + fields["Device Minor"]), none) ||
        fields["Device Minor"].empty()) {
      continue;
    }
    auto& uuid = fields["GPU UUID"];
    gpus.push_back({.id = std::to_string(gpus.size()),
                    .name = fields["Model"],
                    .uuid = uuid.starts_with("GPU-") ? uuid.substr(4) : ""});
  }
  if (!gpus.empty()) return gpus;
  // Without descriptions, nvidia0, nvidia1, … are counted.
  constexpr std::string_view prefix = "nvidia";
  for (const auto& entry : std::filesystem::directory_iterator(sources.devices, none)) {
    const auto name = entry.path().filename().string();
    if (!name.starts_with(prefix)) continue;
    if (detail::parse_number<unsigned>(std::string_view(name).substr(prefix.size()))) {
      gpus.push_back({.id = std::to_string(gpus.size())});
    }
  }
  return gpus;
}

GpuList gpus_without_driver(const GpuSources& sources, const std::optional<std::string>& visible,
                            const std::string& error) {
  GpuList list;
  const auto all = gpus_of_files(sources);
  if (all.empty()) {
    list.problem = concat("no NVIDIA driver: ", error, ", and ", sources.devices.string(),
                          " has no nvidia0; install the driver, or start the container with GPUs "
                          "(docker run --gpus all)");
    return list;
  }
  list.gpus = visible ? visible_gpus(all, *visible) : all;
  list.problem = list.gpus.empty() ? no_gpu_text(no_device, "", visible)
                                   : concat("counted by the files in ", sources.devices.string(),
                                            ", as the NVIDIA driver's library is missing: ", error);
  return list;
}

}  // namespace

std::string label(const Gpu& gpu) {
  return gpu.name.empty() ? gpu.id : concat(gpu.id, " (", gpu.name, ")");
}

std::string labels(const std::vector<Gpu>& gpus) { return detail::joined(gpus, ", ", label); }

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

std::optional<std::size_t> gpu_index(const std::vector<Gpu>& all, const std::string& entry) {
  constexpr std::string_view uuid_prefix = "GPU-";
  if (!entry.starts_with(uuid_prefix)) {
    // CUDA reads the digits at the beginning.
    std::size_t index = 0;
    const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), index);
    return error == std::errc{} && index < all.size() ? std::optional(index) : std::nullopt;
  }
  const auto beginning = entry.substr(uuid_prefix.size());
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < all.size() && !beginning.empty(); ++i) {
    if (strncasecmp(all[i].uuid.c_str(), beginning.c_str(), beginning.size()) != 0) continue;
    if (found) return std::nullopt;
    found = i;
  }
  return found;
}

std::vector<Gpu> visible_gpus(const std::vector<Gpu>& all, const std::string& visible) {
  std::vector<Gpu> gpus;
  std::set<std::size_t> taken;
  const auto entries = gpu_entries(visible);
  for (const auto& entry : entries) {
    // The first entry decides whether the list has indices or UUIDs.
    if (entry.starts_with("GPU-") != entries.front().starts_with("GPU-")) break;
    if (entry.starts_with("MIG-")) {
      if (!all.empty()) gpus.push_back({.id = entry});
      break;
    }
    const auto index = gpu_index(all, entry);
    if (!index) break;
    if (!taken.insert(*index).second) return {};
    gpus.push_back(all[*index]);
    gpus.back().id = entry;
  }
  return gpus;
}

GpuList find_gpus(const GpuSources& sources, const std::optional<std::string>& visible) {
  const auto answer = probe([&] { return ask_driver(sources.driver, visible); }, sources.limit);
  GpuList list;
  if (!answer.problem.empty()) {
    list.problem = concat("the NVIDIA driver, ", sources.driver, ": ", answer.problem,
                          "; nvidia-smi may say more");
    return list;
  }
  const auto ids = visible ? gpu_entries(*visible) : std::vector<std::string>{};
  for (const auto& line : detail::lines_in(answer.text)) {
    std::istringstream in(line);
    in.imbue(std::locale::classic());
    std::string kind;
    in >> kind >> std::ws;
    if (kind == "missing") {
      return gpus_without_driver(sources, visible, line.substr(line.find(' ') + 1));
    }
    if (kind == "driver") {
      int version = 0;
      in >> version;
      list.driver = concat(version / 1000, '.', version % 1000 / 10);  // 12080 is 12.8
    } else if (kind == "gpu") {
      const auto index = list.gpus.size();
      Gpu gpu{.id = index < ids.size() ? ids[index] : std::to_string(index)};
      in >> gpu.memory >> gpu.uuid >> std::ws;
      std::getline(in, gpu.name);
      if (gpu.uuid == "-") gpu.uuid.clear();
      list.gpus.push_back(std::move(gpu));
    } else if (kind == "none") {
      int code = 0;
      std::string said;
      in >> code >> std::ws;
      std::getline(in, said);
      list.gpus.clear();
      list.problem = no_gpu_text(code, said, visible);
    }
  }
  if (list.problem.empty() && list.gpus.size() < ids.size()) {
    list.problem = concat(visible_devices, "=", *visible, " shows ",
                          detail::plural(list.gpus.size(), "GPU"), ": the list ends at '",
                          ids[list.gpus.size()], "', which names no GPU, or a second MIG device");
  }
  return list;
}

namespace {

using namespace std::chrono_literals;

/// Runs in the child process. Two lines: the version and the file.
std::string ask(const std::string& library) {
  std::string problem;
  void* const loaded = load(library, problem);
  if (loaded == nullptr) throw std::runtime_error(problem);
  void* const symbol = dlsym(loaded, "ncclGetVersion");
  if (symbol == nullptr) throw std::runtime_error(library + ": it has no function ncclGetVersion");
  int version = 0;
  const int error = reinterpret_cast<int (*)(int*)>(symbol)(&version);
  if (error != 0) throw std::runtime_error(concat(library, ": ncclGetVersion: error ", error));
  Dl_info info{};
  const bool known = dladdr(symbol, &info) != 0 && info.dli_fname != nullptr;
  return concat(version, '\n', known ? info.dli_fname : library.c_str());
}

}  // namespace

FoundNccl find_nccl(const std::filesystem::path& libtorch) {
  const auto named = detail::variable("LOCKSTEP_NCCL");
  const auto packaged = libtorch / "../../nvidia/nccl/lib/libnccl.so.2";
  const bool is_packaged = !libtorch.empty() && std::filesystem::exists(packaged);
  const std::string library(named.value_or(
      is_packaged ? std::filesystem::weakly_canonical(packaged).string() : "libnccl.so.2"));
  const auto answer = probe([&] { return ask(library); }, 60s);
  FoundNccl found;
  if (!answer.problem.empty()) {
    found.problem =
        concat("not found: ", answer.problem,
               named ? "; correct LOCKSTEP_NCCL, which names it"
                     : "; install libnccl2, or set LOCKSTEP_NCCL to the file libnccl.so.2");
    return found;
  }
  const auto lines = detail::lines_in(answer.text);
  const int version = detail::parse_number<int>(lines.front()).value_or(0);
  found.file = lines.back();
  found.version = detail::nccl_version_text(version);
  if (version < detail::oldest_nccl_version) {
    found.problem =
        "too old, 2.19 or newer is needed; install a newer libnccl2, or set LOCKSTEP_NCCL to the "
        "file of a newer one";
  }
  return found;
}

}  // namespace lockstep::launch
