#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "backend/errors.h"
#include "backend/launched_world.h"
#include "backend/process_group.h"
#include "backend/strategy_hook.h"

namespace lockstep_torch {

void without_interpreter_lock(const std::function<void()>& function) {
  if (!Py_IsInitialized() || !PyGILState_Check()) {
    function();
    return;
  }
  const py::gil_scoped_release released;
  function();
}

void raise_signals() {
  if (!Py_IsInitialized()) return;
  const py::gil_scoped_acquire acquired;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

}  // namespace lockstep_torch

namespace {

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::duration<double>(seconds));
}

std::mutex groups_mutex;
std::vector<std::weak_ptr<lockstep_torch::Progress>> groups;

/// Stops all process groups. Called before the interpreter ends: their threads may call Python.
void stop_groups() {
  const py::gil_scoped_release released;
  const std::lock_guard lock(groups_mutex);
  for (const auto& group : groups) {
    if (const auto progress = group.lock()) progress->stop();
  }
}

c10::intrusive_ptr<c10d::Backend> create_process_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                       int rank, int size, double timeout_seconds,
                                                       const std::string& name,
                                                       const std::vector<int>& ranks) {
  const py::gil_scoped_release released;
  const lockstep_torch::Membership membership{
      .rank = rank, .size = size, .name = name, .ranks = ranks};
  auto group = c10::make_intrusive<lockstep_torch::ProcessGroupLockstep>(
      store, membership, milliseconds_of(timeout_seconds));
  const std::lock_guard lock(groups_mutex);
  std::erase_if(groups, [](const auto& progress) { return progress.expired(); });
  groups.push_back(group->progress());
  return group;
}

/// The port that rank 0 passes and rank 0's addresses, on every rank of the launcher's world.
std::pair<int, std::vector<std::string>> addresses_from_rank_0(int rank, int size, int port,
                                                               double timeout_seconds) {
  const py::gil_scoped_release released;
  return lockstep_torch::with_python_errors([&] {
    const auto& launched = lockstep_torch::launched_world(milliseconds_of(timeout_seconds));
    std::string text;
    if (launched.communicator->rank() == 0) {
      text = std::to_string(port);
      for (const auto& address : lockstep_torch::own_addresses(launched)) {
        text += " " + address;
      }
    }
    std::istringstream words(lockstep_torch::from_rank_0(launched, rank, size, text));
    std::pair<int, std::vector<std::string>> answer;
    words >> answer.first;
    for (std::string address; words >> address;) answer.second.push_back(address);
    return answer;
  });
}

using lockstep_torch::StrategyHook;

/// The hook of DistributedDataParallel for one bucket.
std::shared_ptr<torch::jit::PythonFutureWrapper> exchange(
    StrategyHook& hook, const c10::intrusive_ptr<c10d::Backend>& backend,
    const c10d::GradBucket& bucket) {
  const auto group =
      c10::dynamic_intrusive_pointer_cast<lockstep_torch::ProcessGroupLockstep>(backend);
  if (!group) {
    lockstep_torch::refuse("strategy",
                           c10::str("got a process group of backend ", backend->getBackendName(),
                                    ", expected lockstep; call init_process_group(\"lockstep\") or "
                                    "pass such a group to DistributedDataParallel"));
  }
  const py::gil_scoped_release released;
  const auto future = hook.exchange(group->progress(), bucket);
  try {
    if (future->hasError()) std::rethrow_exception(future->exception_ptr());
  } catch (const c10::ValueError& refusal) {
    group->send_refusal(lockstep::Collective::all_reduce, refusal.msg());
  } catch (...) {
    // The hook has ended the world.
  }
  // DDP expects an object of Python.
  return std::make_shared<torch::jit::PythonFutureWrapper>(future->then(
      [](c10::ivalue::Future& complete) {
        const auto gradients = complete.value().toTensor();
        const py::gil_scoped_acquire acquired;
        return torch::jit::toIValue(py::cast(gradients), c10::PyObjectType::get());
      },
      c10::PyObjectType::get()));
}

}  // namespace

PYBIND11_MODULE(_backend, module) {
  using Released = py::call_guard<py::gil_scoped_release>;
  module.def("create_process_group", create_process_group, py::arg("store"), py::arg("rank"),
             py::arg("size"), py::arg("timeout_seconds"), py::arg("name"), py::arg("ranks"));
  module.def("stop_groups", stop_groups);
  module.def("launched_by_mpi", lockstep_torch::launched_by_mpi);
  module.def("addresses_from_rank_0", addresses_from_rank_0, py::arg("rank"), py::arg("size"),
             py::arg("port"), py::arg("timeout_seconds"));
  py::class_<StrategyHook, std::shared_ptr<StrategyHook>>(module, "StrategyHook")
      .def(py::init<const std::string&, const StrategyHook::Parameters&>(), py::arg("text"),
           py::arg("parameters"))
      .def("exchange", exchange, py::arg("backend"), py::arg("bucket"))
      .def_property_readonly("text", &StrategyHook::text)
      .def("step", &StrategyHook::step, Released())
      .def("state", &StrategyHook::state, Released())
      .def("load", &StrategyHook::load, py::arg("step"), py::arg("state"), Released());
}
