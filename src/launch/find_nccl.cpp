#include <dlfcn.h>

#include <chrono>
#include <locale>
#include <sstream>
#include <stdexcept>

#include "core/environment.h"
#include "core/nccl_version.h"
#include "core/text.h"
#include "launch/gpus.h"
#include "launch/system.h"

namespace lockstep::inline v0_2::launch {
namespace {

using detail::concat;
using namespace std::chrono_literals;

/// Runs in the child process: "VERSION FILE".
std::string ask(const std::string& library) {
  void* const loaded = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (loaded == nullptr) {
    const char* error = dlerror();
    throw std::runtime_error(error != nullptr ? error : library);
  }
  void* const symbol = dlsym(loaded, "ncclGetVersion");
  if (symbol == nullptr) throw std::runtime_error(library + ": it has no function ncclGetVersion");
  int version = 0;
  const int error = reinterpret_cast<int (*)(int*)>(symbol)(&version);
  if (error != 0) throw std::runtime_error(concat(library, ": ncclGetVersion: error ", error));
  Dl_info info{};
  const bool known = dladdr(symbol, &info) != 0 && info.dli_fname != nullptr;
  return concat(version, ' ', known ? info.dli_fname : library.c_str());
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
  std::istringstream in(answer.text);
  in.imbue(std::locale::classic());
  int version = 0;
  in >> version >> std::ws;
  std::getline(in, found.file);
  found.version = detail::nccl_version_text(version);
  if (version < detail::oldest_nccl_version) {
    found.problem =
        "too old, 2.19 or newer is needed; install a newer libnccl2, or set LOCKSTEP_NCCL to the "
        "file of a newer one";
  }
  return found;
}

}  // namespace lockstep::launch
