#include "comm/ucx/ucx_library.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::ucx {

using detail::concat;

const Library& Library::get() {
  static const Library library;
  return library;
}

void* Library::load() {
  void* const library = ::dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  const char* const why = ::dlerror();
  throw BackendUnavailable(concat("ucx: cannot load UCX: ", why != nullptr ? why : ""));
}

Library::Symbol Library::find(const char* name) const {
  void* const found = ::dlsym(library_, name);
  if (found != nullptr) return {found};
  throw BackendUnavailable(
      concat("ucx: got a libucp.so.0 without ", name, ", expected UCX 1.13 or newer"));
}

Settings::Settings() {
  const auto set = [this](const char* name, const char* value) {
    if (::getenv(name) != nullptr) return;
    ::setenv(name, value, 0);
    set_.push_back(name);
  };
  set("UCX_KEEPALIVE_INTERVAL", "inf");
  set("UCX_TCP_KEEPIDLE", "inf");
  // UCX reads these when it is loaded, as Open MPI 5 has done. Later it warns that it ignores them.
  if (void* const loaded = ::dlopen("libucs.so.0", RTLD_LAZY | RTLD_NOLOAD)) {
    ::dlclose(loaded);
    return;
  }
  set("UCX_ERROR_SIGNALS", "");
  set("UCX_DEBUG_SIGNO", "0");
  set("UCX_MEM_MMAP_HOOK_MODE", "none");
  set("UCX_LOG_LEVEL", "fatal");
}

Settings::~Settings() {
  for (const char* name : set_) ::unsetenv(name);
}

}  // namespace lockstep::ucx
