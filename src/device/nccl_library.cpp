#include "device/nccl_library.h"

#include <dlfcn.h>

#include "core/environment.h"
#include "core/nccl_version.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::device {
namespace {

constexpr const char* default_name = "libnccl.so.2";

[[noreturn]] void refuse(const std::string& why) {
  throw BackendUnavailable(detail::concat(
      "nccl: ", why, ", expected NCCL ", detail::nccl_version_text(detail::oldest_nccl_version),
      " or newer: install it, or set LOCKSTEP_NCCL to the path of libnccl.so.2, or "
      "exchange tensors through host memory (LOCKSTEP_SHARE_GPUS=1)"));
}

}  // namespace

const NcclLibrary& NcclLibrary::get() {
  static const NcclLibrary library;
  return library;
}

std::string NcclLibrary::version_text() const { return detail::nccl_version_text(version_); }

NcclLibrary::NcclLibrary() : path_(detail::variable("LOCKSTEP_NCCL").value_or(default_name)) {}

void* NcclLibrary::load() const {
  const bool is_named = detail::variable("LOCKSTEP_NCCL").has_value();
  // A second copy of NCCL in a process would be loaded under the name of the first.
  void* library = is_named ? nullptr : ::dlopen(default_name, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) library = ::dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = ::dlerror();
    refuse(detail::concat("cannot load ", path_, why != nullptr ? ": " : "",
                          why != nullptr ? why : ""));
  }
  return library;
}

NcclLibrary::Symbol NcclLibrary::find(const char* name) const {
  void* const found = ::dlsym(library_, name);
  if (found == nullptr) refuse(detail::concat("got ", path_, " without ", name));
  return {found};
}

int NcclLibrary::checked_version() const {
  int version = 0;
  if (get_version(&version) != nccl::Result::success || version < detail::oldest_nccl_version) {
    refuse(detail::concat("got NCCL ", detail::nccl_version_text(version), " from ", path_));
  }
  return version;
}

}  // namespace lockstep::device
