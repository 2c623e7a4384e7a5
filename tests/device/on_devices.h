#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdlib>
#include <functional>

#include "lockstep/device_group.h"
#include "lockstep/init.h"
#include "tests/device/simulation/nccl_double.h"
#include "tests/device/simulation/simulation.h"

namespace lockstep::testing {

/// Runs fn on n thread ranks, rank r with the simulated device r. Afterwards every access to the
/// devices must have been ordered.
inline void on_devices(int n, DeviceBackend backend, const std::function<void(Group)>& fn,
                       std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  simulation::install();
  simulation::take_races();
  ::setenv("LOCKSTEP_NCCL", LOCKSTEP_NCCL_DOUBLE, 1);
  const auto run = [&](const Group& world) {
    at::set_num_threads(1);
    const at::Device device(at::kPrivateUse1, static_cast<c10::DeviceIndex>(world.rank()));
    const c10::DeviceGuard on_device(device);
    fn(device_group(world, device, {.backend = backend, .timeout = timeout}));
  };
  spawn(n, run, {.timeout = timeout});
  simulation::synchronize_all();
  for (const auto& race : simulation::take_races()) ADD_FAILURE() << race;
  for (const auto& fault : simulation::take_nccl_faults()) ADD_FAILURE() << fault;
}

inline const char* name(DeviceBackend backend) {
  return backend == DeviceBackend::nccl ? "nccl" : "staged";
}

/// For tests of (backend, ranks).
class OnDevices : public ::testing::TestWithParam<std::tuple<DeviceBackend, int>> {
 protected:
  DeviceBackend backend() const { return std::get<0>(GetParam()); }
  int ranks() const { return std::get<1>(GetParam()); }
  void run(const std::function<void(Group)>& fn) const { on_devices(ranks(), backend(), fn); }
};

inline std::string name_of(const ::testing::TestParamInfo<OnDevices::ParamType>& info) {
  return name(std::get<0>(info.param)) + std::to_string(std::get<1>(info.param));
}

}  // namespace lockstep::testing
