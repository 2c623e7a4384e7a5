#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/serialize.h>

#include <string>
#include <vector>

#include "comm/mpi/mpi.h"
#include "tests/group/launchers.h"
#include "tests/launch/launched.h"
#include "tests/temporary_folder.h"

// The same training over every backend of processes.

namespace lockstep::testing {
namespace {

constexpr int ranks = 4;

/// The parameters in which the command's ranks end, the same on all; command ends in the program.
at::Tensor trained(std::vector<std::string> command, Launched::Variables variables) {
  const TemporaryFolder folder;
  const auto file = (folder / "parameters.pt").string();
  command.insert(command.end(), {"train", file});
  variables.emplace("OMP_NUM_THREADS", "1");  // or launchers give ranks different numbers
  const auto ended = Launched(command, variables).wait();
  EXPECT_EQ(ended.code, 0) << ended.out << ended.err;
  at::Tensor parameters;
  if (ended.code == 0) torch::load(parameters, file);
  return parameters;
}

double distance(const at::Tensor& values, const at::Tensor& expected) {
  return ((values - expected).norm() / expected.norm()).item<double>();
}

TEST(Training, OverMpiEndsWhereItDoesInOneHostsMemory) {
  if (!mpi::available().empty()) GTEST_SKIP() << mpi::available();
  const auto expected = trained(
      {LOCKSTEP_BINARY_DIR "/lockstep", "run", "-n", std::to_string(ranks), "--", init_program},
      {});
  const auto direct =
      trained(under_mpirun(ranks), {{"LOCKSTEP_BACKEND", "mpi"}, {"LOCKSTEP_ALGORITHM", "direct"}});
  const auto ring =
      trained(under_mpirun(ranks), {{"LOCKSTEP_BACKEND", "mpi"}, {"LOCKSTEP_ALGORITHM", "ring"}});
  const auto hierarchical =
      trained(under_mpirun_on_pairs(ranks), {{"LOCKSTEP_BACKEND", "hierarchical"}});
  ASSERT_TRUE(expected.defined() && direct.defined() && ring.defined() && hierarchical.defined());
  EXPECT_TRUE(direct.equal(expected));  // both sum in the order of ranks
  EXPECT_LT(distance(ring, expected), 1e-6);
  EXPECT_LT(distance(hierarchical, expected), 1e-6);
}

}  // namespace
}  // namespace lockstep::testing
