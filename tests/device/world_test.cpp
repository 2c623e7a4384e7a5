#include "tests/device/on_devices.h"
#include "tests/matchers.h"
#include "tests/message_of.h"
#include "tests/variable.h"

// How a world gets its devices: options, environment, and worlds that cannot have them.

namespace lockstep::testing {
namespace {

/// The error of a world of n thread ranks; empty if there is none.
std::string refusal(int n, const InitOptions& options = {}) {
  return message_of<InvalidArgument>([&] {
    spawn(
        n, [](const Group&) {}, options);
  });
}

/// Destroyed at exit after the devices have shut down, whose handler SetUp() registers later.
std::optional<Group> global_group;

class DeviceWorld : public OnSimulation {};

TEST_F(DeviceWorld, GivesEachRankTheDeviceOfItsLocalRank) {
  for (const auto* backend : {"staged", "nccl"}) {
    const Variable chosen("LOCKSTEP_DEVICE_BACKEND", backend);
    const Variable device("LOCKSTEP_DEVICE", simulation::type_name());
    spawn(3, [&](const Group& world) {
      EXPECT_EQ(world.device(),
                at::Device(simulation::device_type(), static_cast<c10::DeviceIndex>(world.rank())));
      EXPECT_EQ(world.communicator().backend(), backend);
      EXPECT_TRUE(world.host().device().is_cpu());
      // The device of the rank is the current one.
      const auto tensor = at::ones({10}, at::TensorOptions().device(simulation::device_type()));
      world.all_reduce(tensor).wait();
      EXPECT_EQ(tensor.sum().item<float>(), 30);
      EXPECT_THROW(world.empty({3, -1}), InvalidArgument);
    });
  }
}

TEST_F(DeviceWorld, IsOnTheCpuByDefaultWithoutCuda) {
  if (simulation::device_type() == at::kCUDA) GTEST_SKIP() << "the simulated devices are CUDA's";
  spawn(2, [](const Group& world) {
    EXPECT_TRUE(world.device().is_cpu());
    EXPECT_EQ(&world.host().communicator(), &world.communicator());
  });
  const Variable device("LOCKSTEP_DEVICE", simulation::type_name());
  spawn(2, [](const Group& world) { EXPECT_TRUE(world.device().is_cpu()); }, {.device = at::kCPU});
}

TEST_F(DeviceWorld, NeedsADeviceForEachRank) {
  EXPECT_THAT(refusal(2, {.device = at::kXPU}),
              AllOf(HasSubstr("got no xpu device on rank 0, and this build of LibTorch"),
                    HasSubstr("LOCKSTEP_DEVICE=cpu")));
  EXPECT_THAT(refusal(9, {.device = simulation::device_type()}),
              AllOf(HasSubstr(detail::concat("got 9 ranks and 8 ", simulation::type_name(),
                                             " devices on this host")),
                    HasSubstr("--share-gpus")));
  const Variable share("LOCKSTEP_SHARE_GPUS", "1");
  EXPECT_THAT(refusal(9, {.device = simulation::device_type()}),
              HasSubstr("ranks 0 and 8 are threads that share device 0"));
}

TEST_F(DeviceWorld, RefusesUnknownSettings) {
  const auto refusal_with = [](const char* name, const char* value,
                               std::optional<at::DeviceType> device) {
    const Variable variable(name, value);
    return refusal(2, {.device = device});
  };
  const auto device = simulation::device_type();
  EXPECT_THAT(refusal_with("LOCKSTEP_DEVICE", "gpu", {}),
              HasSubstr("got LOCKSTEP_DEVICE=gpu, expected auto, cpu, cuda"));
  EXPECT_THAT(refusal_with("LOCKSTEP_DEVICE", "sim:1", {}),
              HasSubstr("got LOCKSTEP_DEVICE=sim:1, expected"));
  EXPECT_THAT(refusal_with("LOCKSTEP_DEVICE_BACKEND", "gloo", device),
              HasSubstr("LOCKSTEP_DEVICE_BACKEND=gloo, expected nccl or staged"));
  const Variable nccl("LOCKSTEP_DEVICE_BACKEND", "nccl");
  EXPECT_THAT(refusal_with("LOCKSTEP_SHARE_GPUS", "1", device),
              HasSubstr("expected one of the two"));
  EXPECT_THAT(refusal_with("LOCKSTEP_SHARE_GPUS", "yes", device),
              HasSubstr("LOCKSTEP_SHARE_GPUS=yes, expected 1"));
}

// A process loads NCCL once, so these are processes.
TEST_F(DeviceWorld, NeedsNccl) {
  const auto exits_with = [](const char* library, int version) {
    ::setenv("LOCKSTEP_NCCL", library, 1);
    nccl_double()->version = version;
    try {
      const Variable backend("LOCKSTEP_DEVICE_BACKEND", "nccl");
      spawn(2, [](const Group&) {}, {.device = simulation::device_type()});
    } catch (const BackendUnavailable& error) {
      std::fprintf(stderr, "%s\n", error.what());
      std::_Exit(3);
    }
    std::_Exit(0);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exits_with("/nonexistent/libnccl.so.2", 21900), ::testing::ExitedWithCode(3),
              "cannot load /nonexistent/libnccl.so.2.*expected NCCL 2.19.0 or newer");
  EXPECT_EXIT(exits_with(LOCKSTEP_NCCL_DOUBLE, 21805), ::testing::ExitedWithCode(3),
              "got NCCL 2.18.5 from .*expected NCCL 2.19.0 or newer");
  EXPECT_EXIT(exits_with(LOCKSTEP_NCCL_DOUBLE, 21900), ::testing::ExitedWithCode(0), "");
}

TEST_F(DeviceWorld, MayOutliveItsDevicesAtExit) {
  const auto exits_with_a_pending_operation = [](const char* backend) {
    ::setenv("LOCKSTEP_DEVICE_BACKEND", backend, 1);
    global_group = init({.device = simulation::device_type()});
    const auto tensor = at::ones({1000}, global_group->device());
    global_group->all_reduce(tensor).wait();
    simulation::slow_down(0, 300'000);
    global_group->all_reduce(tensor).wait();
    std::exit(0);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const auto* backend : {"staged", "nccl"}) {
    SCOPED_TRACE(backend);
    EXPECT_EXIT(exits_with_a_pending_operation(backend), ::testing::ExitedWithCode(0), "");
  }
}

}  // namespace
}  // namespace lockstep::testing
