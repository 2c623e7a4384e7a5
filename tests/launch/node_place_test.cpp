#include <string>
#include <vector>

#include "launch/plan.h"
#include "lockstep/error.h"
#include "tests/launch/launched.h"
#include "tests/matchers.h"
#include "tests/message_of.h"

namespace lockstep::launch {
namespace {

using namespace testing;

void expect_place(const NodePlace& place, int number, int count, const std::string& host,
                  int port) {
  EXPECT_EQ(place.number, number);
  EXPECT_EQ(place.count, count);
  EXPECT_EQ(place.host, host);
  EXPECT_EQ(place.port, port);
}

std::string refusal(const NodeOptions& options, const Variables& environment) {
  return testing::message_of<InvalidArgument>([&] { find_place(options, environment); });
}

const Variables pytorch_job{
    {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h0"}, {"MASTER_PORT", "23456"}};

TEST(NodePlace, IsThisHostAlone) {
  expect_place(find_place({}, {}), 0, 1, "", 0);
  expect_place(find_place({.count = 1}, pytorch_job), 0, 1, "", 0);
  expect_place(find_place({.standalone = true}, pytorch_job), 0, 1, "", 0);
  expect_place(find_place({}, {{"RANK", "0"}, {"WORLD_SIZE", "1"}}), 0, 1, "", 0);
  expect_place(find_place({}, {{"PET_NNODES", "1"}, {"SLURM_STEP_NUM_NODES", "1"}}), 0, 1, "", 0);
  expect_place(find_place({}, {{"JOB_COMPLETION_INDEX", "3"}}), 0, 1, "", 0);
}

TEST(NodePlace, IsThatOfTheOptions) {
  expect_place(find_place({.count = 3, .number = 2, .master = "h0:4711"}, {}), 2, 3, "h0", 4711);
  expect_place(find_place({.count = 2, .number = 0, .master = "h0"}, {}), 0, 2, "h0", 29500);
  expect_place(find_place({.count = 2, .number = 0, .master = "[fd00::1]:4711"}, {}), 0, 2,
               "fd00::1", 4711);
  expect_place(find_place({.count = 2, .number = 0, .master = "fd00::1"}, {}), 0, 2, "fd00::1",
               29500);
  expect_place(find_place({.count = 4, .number = 3, .master = "other:1"}, pytorch_job), 3, 4,
               "other", 1);
}

TEST(NodePlace, IsThatOfTheEnvironment) {
  expect_place(find_place({}, pytorch_job), 1, 2, "h0", 23456);
  expect_place(find_place({}, {{"PET_NNODES", "3"},
                               {"PET_NODE_RANK", "2"},
                               {"PET_MASTER_ADDR", "trainer-0"},
                               {"PET_MASTER_PORT", "29400"}}),
               2, 3, "trainer-0", 29400);
  expect_place(find_place({.count = 4, .master = "job-0.job"}, {{"JOB_COMPLETION_INDEX", "3"}}), 3,
               4, "job-0.job", 29500);
  expect_place(find_place({.master = "h9:1"}, pytorch_job), 1, 2, "h9", 1);
}

TEST(NodePlace, IsThatOfSlurm) {
  const auto step = [](const std::string& list) {
    return find_place({}, {{"SLURM_STEP_NUM_NODES", "2"},
                           {"SLURM_NODEID", "1"},
                           {"SLURM_STEP_NODELIST", list},
                           {"SLURM_NNODES", "4"}});
  };
  expect_place(step("gpu[07-09,11],other"), 1, 2, "gpu07", 29500);
  expect_place(step("gpu[3,5]"), 1, 2, "gpu3", 29500);
  expect_place(step("a,b[1-2]"), 1, 2, "a", 29500);
  expect_place(step("a"), 1, 2, "a", 29500);
}

TEST(NodePlace, IsThatOfTheInnermostLauncher) {
  auto both = pytorch_job;
  both.insert(both.end(), {{"SLURM_STEP_NUM_NODES", "8"}, {"SLURM_NODEID", "7"}});
  expect_place(find_place({}, both), 1, 2, "h0", 23456);
}

TEST(NodePlace, IsRefusedWithTheVariables) {
  EXPECT_THAT(refusal({}, {{"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h0"}}),
              AllOf(HasSubstr("WORLD_SIZE=2, RANK unset, MASTER_ADDR=h0, MASTER_PORT unset"),
                    HasSubstr("--standalone")));
  EXPECT_THAT(refusal({}, {{"PET_NNODES", "1:2"}, {"PET_NODE_RANK", "0"}}),
              HasSubstr("PET_NNODES=1:2"));
  EXPECT_THAT(refusal({}, {{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h0"}}),
              HasSubstr("RANK=2"));
  // A batch script, whose only launcher would wait for others.
  EXPECT_THAT(refusal({}, {{"SLURM_NNODES", "2"}, {"SLURM_NODEID", "0"}}),
              HasSubstr("SLURM_NNODES=2"));
  EXPECT_THAT(refusal({.count = 2}, {}), HasSubstr("got --nnodes 2; expected"));
  EXPECT_THAT(refusal({.count = 2, .number = 2, .master = "h0"}, {}),
              HasSubstr("--nnodes 2 --node-rank 2 --master h0"));
  EXPECT_THAT(refusal({.count = 2, .number = 0, .master = "h0:99999"}, {}),
              HasSubstr("--master h0:99999"));
  EXPECT_THAT(refusal({.count = 0}, {}), HasSubstr("--nnodes 0"));
  EXPECT_THAT(refusal({.number = 1}, {}), HasSubstr("add --nnodes"));
  EXPECT_THAT(refusal({.count = 2, .standalone = true}, {}), HasSubstr("--standalone"));
}

TEST(NodePlace, GivesTheRanksOfTheEnvironment) {
  EXPECT_EQ(ranks_of_environment({}), "");
  EXPECT_EQ(ranks_of_environment({{"PET_NPROC_PER_NODE", "4"}}), "4");
  EXPECT_EQ(ranks_of_environment({{"PET_NPROC_PER_NODE", "gpu"}}), "gpus");
  EXPECT_EQ(ranks_of_environment({{"PET_NPROC_PER_NODE", "auto"}}), "");
}

TEST(NodePlace, IsNeverAPrivateWorldInSilence) {
  using lockstep::testing::run_lockstep;
  const auto refused =
      run_lockstep({"-n", "1", "echo", "started"}, {{"RANK", "1"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(refused.code, 2);
  EXPECT_EQ(refused.out, "");
  EXPECT_THAT(refused.err, HasSubstr("RANK=1, MASTER_ADDR unset"));
  const auto alone =
      run_lockstep({"--standalone", "echo", "started"},
                   {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"PET_NPROC_PER_NODE", "2"}});
  EXPECT_THAT(alone.out, AllOf(HasSubstr("started\n"), HasSubstr("[1] started\n")));
  const auto shown = run_lockstep({"--dry-run", "-n", "1", "true"},
                                  {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h0"}});
  EXPECT_THAT(shown.out,
              HasSubstr("1 of 2, node 0 listens at h0 port 29500 (WORLD_SIZE=2, RANK=1"));
}

}  // namespace
}  // namespace lockstep::launch
