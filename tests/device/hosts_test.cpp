#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "comm/mpi/mpi.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "tests/device/on_devices.h"
#include "tests/launch/launched.h"
#include "tests/mpirun.h"

// Groups on devices whose ranks MPI's launcher has started, on one host and on simulated hosts. The
// ranks run tests of this program again.

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class DeviceHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (on_gpus()) GTEST_SKIP() << "simulated hosts would share GPUs";
    if (processes() > 0) GTEST_SKIP() << "starts processes itself";
    if (const auto why = mpi::available(); !why.empty()) GTEST_SKIP() << why;
  }

  /// Runs tests on ranks of this backend, two ranks on each simulated host.
  static void expect_passes(int ranks, const std::string& backend, const std::string& tests) {
    SCOPED_TRACE(detail::concat(backend, ", ", ranks, " ranks"));
    auto words = mpirun(ranks);
    words.insert(words.end(),
                 {"sh", "-c",
                  "r=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; export LOCKSTEP_HOST=$((r / 2)); "
                  "NCCL_HOSTID=$LOCKSTEP_HOST exec \"$@\"",
                  "--", LOCKSTEP_BINARY_DIR "/test_device", "--gtest_filter=" + tests});
    const auto ended = Launched(words, {{"LOCKSTEP_BACKEND", backend},
                                        {"LOCKSTEP_DEVICE", "cpu"},
                                        {"LOCKSTEP_TEST_HOSTS", "1"},
                                        {"MASTER_ADDR", "127.0.0.1"},
                                        {"MASTER_PORT", free_port()},
                                        {"GTEST_COLOR", "no"},
                                        {"OMP_NUM_THREADS", "1"}})
                           .wait();
    // Not the exit status: MPI's launcher also reports a world that has failed, as some tests want.
    int passed = 0;
    const std::string text = "[  PASSED  ] ";
    for (auto at = ended.out.find(text); at != std::string::npos;
         at = ended.out.find(text, at + 1)) {
      if (ended.out[at + text.size()] != '0') ++passed;
    }
    EXPECT_EQ(passed, ranks) << ended.out << ended.err;
    EXPECT_THAT(ended.out, AllOf(Not(HasSubstr("FAILED")), Not(HasSubstr("SKIPPED"))));
  }
};

// The reference is the host world's own collective: MPI's, TCP's, or that of shared memory inside a
// host and MPI between hosts.
TEST_F(DeviceHosts, HaveTheCollectivesAndTrain) {
  expect_passes(3, "mpi", "Devices/Collectives.*3:Devices/Streams.*3");
  expect_passes(3, "hierarchical", "Devices/Collectives.*3:Devices/TrainingOnDevices.*3");
  expect_passes(3, "tcp", "Devices/Collectives.*3");
}

TEST_F(DeviceHosts, RaiseTheFirstCause) {
  for (const auto* backend : {"mpi", "hierarchical", "tcp"}) {
    expect_passes(3, backend, "RankOfHosts.RaisesWhatDiffers");
  }
}

/// A test that DeviceHosts runs on ranks of simulated hosts. The world has failed afterwards.
class RankOfHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("LOCKSTEP_TEST_HOSTS") == nullptr) GTEST_SKIP() << "of DeviceHosts";
    prepare_devices();
  }
  static Group device_world() {
    const auto world = init({.device = at::kCPU, .timeout = std::chrono::seconds(20)});
    const auto device = device_of(world.local_rank());
    c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
    return device_group(world, device, {.backend = DeviceBackend::nccl});
  }
  /// Runs collectives until one fails.
  static std::string error_of(const Group& group, std::int64_t count) {
    try {
      for (int i = 0; i < 1000; ++i) {
        const auto tensor = at::ones({count}, at::TensorOptions().device(group.device()));
        group.all_reduce(tensor).wait();
        (void)tensor.sum().item<float>();  // waits for the device
        group.barrier().wait();
      }
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
};

TEST_F(RankOfHosts, RaisesWhatDiffers) {
  const auto group = device_world();
  const auto error = error_of(group, group.rank() == 1 ? 8 : 4);
  EXPECT_THAT(error,
              AllOf(HasSubstr("differs between ranks: rank 1 got all_reduce sum float32 [8]"),
                    HasSubstr("expected all_reduce sum float32 [4] as on rank 0")));
}

}  // namespace
}  // namespace lockstep::testing
