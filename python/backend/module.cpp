#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "backend/process_group.h"
#include "lockstep/version.h"

namespace {

void release_interpreter_lock(const std::function<void()>& function) {
  if (!Py_IsInitialized() || !PyGILState_Check()) {
    function();
    return;
  }
  const py::gil_scoped_release released;
  function();
}

c10::intrusive_ptr<c10d::Backend> create_process_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                       int rank, int size, double timeout_seconds) {
  const py::gil_scoped_release released;
  const auto timeout = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::duration<double>(timeout_seconds));
  return c10::make_intrusive<lockstep_torch::ProcessGroupLockstep>(store, rank, size, timeout);
}

}  // namespace

PYBIND11_MODULE(_backend, module) {
  lockstep_torch::without_interpreter_lock = release_interpreter_lock;
  module.attr("__version__") = std::string(lockstep::version());
  module.attr("torch_version") = LOCKSTEP_TORCH_VERSION;
  module.def("create_process_group", create_process_group, py::arg("store"), py::arg("rank"),
             py::arg("size"), py::arg("timeout_seconds"));
}
