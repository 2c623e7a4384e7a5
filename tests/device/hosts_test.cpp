#include <string>
#include <vector>

#include "comm/mpi/mpi.h"
#include "core/text.h"
#include "tests/device/on_devices.h"
#include "tests/launch/launched.h"
#include "tests/matchers.h"
#include "tests/mpirun.h"

// Groups on devices whose ranks MPI's launcher has started, on one host and on simulated hosts. The
// ranks run tests of this program again.

namespace lockstep::testing {
namespace {

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
                                        {"MASTER_ADDR", "127.0.0.1"},
                                        {"MASTER_PORT", free_port()},
                                        {"GTEST_COLOR", "no"},
                                        {"OMP_NUM_THREADS", "1"}})
                           .wait();
    // Each rank has run tests. The exit status is that of a rank without tests, too.
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

}  // namespace
}  // namespace lockstep::testing
