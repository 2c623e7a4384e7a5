#pragma once

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <thread>
#include <tuple>

#include "comm/communicator.h"
#include "core/environment.h"
#include "core/text.h"
#include "lockstep/device_group.h"
#include "lockstep/error.h"
#include "lockstep/init.h"
#include "tests/device/simulation/nccl_double.h"
#include "tests/device/simulation/simulation.h"
#include "tests/gpus.h"
#include "tests/temporary_folder.h"

/// A test of a suite of OnDevices. The body is that of a rank, whose group is `group`.
#define TEST_P_ON_DEVICES(suite, name)         \
  void suite##_##name(const Group& group);     \
  TEST_P(suite, name) { run(suite##_##name); } \
  void suite##_##name(const Group& group)

// Tests use the simulated device and the double of NCCL, or GPUs and the real NCCL, which have no
// check of races and arguments: tests/gpus.h.
namespace lockstep::testing {

/// The number of devices that a process can use.
inline int device_count() {
  return on_gpus() ? static_cast<int>(torch::cuda::device_count()) : simulation::devices;
}

inline at::Device device_of(int rank) {
  return {on_gpus() ? at::kCUDA : simulation::device_type(), static_cast<c10::DeviceIndex>(rank)};
}

/// Three ranks, or two on a machine with two GPUs.
inline int some_ranks() { return std::clamp(device_count(), 2, 3); }

/// The number of processes that a launcher has started this program in, or 0: ranks are threads.
inline int processes() {
  const auto& environment = Environment::get();
  if (environment.world_size) return *environment.world_size;
  return environment.launcher && environment.launcher->size > 1 ? environment.launcher->size : 0;
}

/// Whether ranks that are processes may share a GPU over NCCL: lockstep run --share-gpus=nccl.
inline bool share_by_nccl() {
  const char* const text = std::getenv("LOCKSTEP_SHARE_GPUS");
  return processes() > 0 && text != nullptr && std::string(text) == "nccl";
}

/// Why n ranks cannot run here, or an empty text.
inline std::string unable(int n, DeviceBackend backend) {
  const int devices = backend == DeviceBackend::nccl && share_by_nccl() ? n : device_count();
  if (processes() > 0 && processes() != n) {
    return detail::concat(n, " ranks, of ", processes(), " processes");
  }
  const bool may_share = processes() > 0 && backend == DeviceBackend::staged;
  const int least = may_share ? 1 : n;
  return devices >= least ? "" : detail::concat("needs ", least, " GPUs, has ", devices);
}

inline c10::Stream current_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}
inline c10::Stream new_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}
inline void order(const c10::Stream& earlier, const c10::Stream& later) {
  c10::Event event(earlier.device_type());
  event.record(earlier);
  event.block(later);
}

/// Sets the longest random pause before each task of a simulated stream, in microseconds.
inline void delay_streams(int microseconds) {
  if (on_gpus()) return;
  simulation::install();
  simulation::set_delay(microseconds);
}

/// Prepares this process.
inline void prepare_devices() {
  if (on_gpus()) return compute_exactly();
  simulation::install();
  simulation::reset();
  ::setenv("LOCKSTEP_NCCL", LOCKSTEP_NCCL_DOUBLE, 1);
}

/// What the devices have reported since the last call, a line each; forgotten afterwards.
inline std::vector<std::string> take_reports() {
  if (on_gpus()) return {};
  auto reports = simulation::take_races();
  for (auto& fault : nccl_double()->take_faults()) reports.push_back(std::move(fault));
  return reports;
}

/// Runs fn on n ranks, rank r with device r. Ranks are threads, or the processes that `lockstep
/// run` has started, which share the devices if there are fewer. Afterwards every access to
/// simulated devices must have been ordered.
inline void on_devices(int n, DeviceBackend backend, const std::function<void(Group)>& fn,
                       std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  if (const auto why = unable(n, backend); !why.empty()) throw std::runtime_error(why);
  prepare_devices();
  const auto run = [&](const Group& world) {
    at::set_num_threads(1);
    const auto device = device_of(world.local_rank() % device_count());
    const c10::DeviceGuard on_device(device);
    fn(device_group(world, device, {.backend = backend, .timeout = timeout}));
  };
  if (processes() > 0) {
    static const Group world = init({.device = at::kCPU, .timeout = std::chrono::seconds(60)});
    run(world.split(0, world.rank()));
    world.barrier().wait();  // for what the ranks share, such as files
  } else {
    spawn(n, run, {.device = at::kCPU, .timeout = timeout});
  }
  if (!on_gpus()) simulation::synchronize_all();
  for (const auto& report : take_reports()) ADD_FAILURE() << report;
}

/// A folder that all ranks see, also if they are processes of one launcher. Removed with all it
/// holds by the first of them: use it within on_devices().
inline TemporaryFolder folder_of_ranks() {
  static int made = 0;
  const auto of = processes() > 0 ? ::getppid() : ::getpid();
  return TemporaryFolder(std::filesystem::temp_directory_path() /
                         detail::concat("lockstep-", of, '-', made++));
}

inline const char* name(DeviceBackend backend) {
  return backend == DeviceBackend::nccl ? "nccl" : "staged";
}

inline const auto both_backends = ::testing::Values(DeviceBackend::staged, DeviceBackend::nccl);

/// For tests of the simulated device or of the double of NCCL.
class OnSimulation : public ::testing::Test {
 protected:
  void SetUp() override {
    if (on_gpus() || processes() > 0) GTEST_SKIP() << "of the simulated device, with thread ranks";
    prepare_devices();
  }
};

/// For tests of (backend, ranks).
class OnDevices : public ::testing::TestWithParam<std::tuple<DeviceBackend, int>> {
 protected:
  void SetUp() override {
    if (const auto why = unable(ranks(), backend()); !why.empty()) GTEST_SKIP() << why;
  }
  DeviceBackend backend() const { return std::get<0>(GetParam()); }
  int ranks() const { return std::get<1>(GetParam()); }
  void run(const std::function<void(Group)>& fn) const { on_devices(ranks(), backend(), fn); }
  /// The greatest distance from the CPU's values. NCCL adds the values of more than two ranks in
  /// another order. A GPU's operators round otherwise.
  double tolerance(double of_nccl, double of_gpus) const {
    if (on_gpus()) return of_gpus;
    return backend() == DeviceBackend::nccl && ranks() > 2 ? of_nccl : 0;
  }
};

/// The same, with random pauses of the simulated streams, in microseconds.
class OnDelayedDevices : public OnDevices {
 protected:
  explicit OnDelayedDevices(int longest = 50) : longest_(longest) {}
  void SetUp() override {
    OnDevices::SetUp();
    if (!IsSkipped()) delay_streams(longest_);
  }
  void TearDown() override { delay_streams(0); }

 private:
  int longest_;
};

inline std::string name_of_case(const ::testing::TestParamInfo<OnDevices::ParamType>& info) {
  return name(std::get<0>(info.param)) + std::to_string(std::get<1>(info.param));
}

}  // namespace lockstep::testing
