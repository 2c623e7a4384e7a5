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

template <class Function>
void find(void* library, const std::string& path, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) refuse(detail::concat("got ", path, " without ", name));
}

}  // namespace

const NcclLibrary& NcclLibrary::get() {
  static const NcclLibrary library;
  return library;
}

std::string NcclLibrary::version_text() const { return detail::nccl_version_text(version_); }

NcclLibrary::NcclLibrary() {
  const std::string given(detail::variable("LOCKSTEP_NCCL").value_or(""));
  path_ = given.empty() ? default_name : given;
  // A second copy of NCCL in a process would be loaded under the name of the first.
  void* library = given.empty() ? ::dlopen(default_name, RTLD_NOW | RTLD_NOLOAD) : nullptr;
  if (library == nullptr) library = ::dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = ::dlerror();
    refuse(detail::concat("cannot load ", path_, why != nullptr ? ": " : "",
                          why != nullptr ? why : ""));
  }
  find(library, path_, "ncclGetVersion", get_version);
  if (get_version(&version_) != nccl::Result::success || version_ < detail::oldest_nccl_version) {
    refuse(detail::concat("got NCCL ", version_text(), " from ", path_));
  }
  find(library, path_, "ncclGetUniqueId", get_unique_id);
  find(library, path_, "ncclCommInitRankConfig", comm_init_rank_config);
  find(library, path_, "ncclCommFinalize", comm_finalize);
  find(library, path_, "ncclCommDestroy", comm_destroy);
  find(library, path_, "ncclCommAbort", comm_abort);
  find(library, path_, "ncclCommGetAsyncError", comm_get_async_error);
  find(library, path_, "ncclGetErrorString", get_error_string);
  find(library, path_, "ncclGetLastError", get_last_error);
  find(library, path_, "ncclAllReduce", all_reduce);
  find(library, path_, "ncclBroadcast", broadcast);
  find(library, path_, "ncclAllGather", all_gather);
  find(library, path_, "ncclReduceScatter", reduce_scatter);
  find(library, path_, "ncclReduce", reduce);
  find(library, path_, "ncclSend", send);
  find(library, path_, "ncclRecv", recv);
  find(library, path_, "ncclGroupStart", group_start);
  find(library, path_, "ncclGroupEnd", group_end);
}

}  // namespace lockstep::device
