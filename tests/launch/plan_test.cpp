#include "launch/plan.h"

#include <algorithm>

#include "core/system/denormals_guard.h"
#include "launch/launch.h"
#include "lockstep/denormals.h"
#include "lockstep/error.h"
#include "tests/launch/launched.h"
#include "tests/message_of.h"

namespace lockstep::inline v0_2::launch {
namespace {

using namespace testing;

using Cpus = std::vector<int>;

/// A machine of so many nodes with so many cores, each core with so many SMT siblings, numbered as
/// Linux does: first one CPU of every core, then the siblings.
Topology machine(int nodes, int cores_per_node, int siblings = 1) {
  Topology topology;
  const int cores = nodes * cores_per_node;
  for (int core = 0; core < cores; ++core) {
    Topology::Core made{.node = core / cores_per_node, .package = 0, .cpus = {}};
    for (int s = 0; s < siblings; ++s) made.cpus.push_back(core + s * cores);
    topology.cores.push_back(made);
  }
  return topology;
}

TEST(DivideCores, IsAsWorkedOutByHand) {
  struct Case {
    const char* what;
    Topology machine;
    int ranks;
    int threads;
    std::vector<Cpus> cpus;  // of each rank
    Bind bind = Bind::cores;
  };
  for (const auto& c : std::vector<Case>{
           {"one core each", machine(1, 2), 2, 1, {{0}, {1}}},
           // Threads are counted in cores.
           {"siblings stay together", machine(1, 4, 2), 2, 2, {{0, 1, 4, 5}, {2, 3, 6, 7}}},
           {"a rest is not counted", machine(1, 7), 3, 2, {{0, 1}, {2, 3}, {4, 5, 6}}},
           {"no slice crosses a node",
            machine(2, 8),
            3,
            4,
            {{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11, 12, 13, 14, 15}}},
           {"one rank takes all nodes", machine(2, 4), 1, 8, {{0, 1, 2, 3, 4, 5, 6, 7}}},
           {"few ranks take whole nodes", machine(4, 2), 2, 4, {{0, 1, 2, 3}, {4, 5, 6, 7}}},
           {"more ranks than cores share siblings", machine(1, 2, 2), 4, 1, {{0}, {2}, {1}, {3}}},
           {"more ranks than CPUs are not bound", machine(1, 2), 3, 1, {}},
           {"without binding only threads are counted", machine(1, 8, 2), 2, 4, {}, Bind::none}}) {
    const auto division = divide_cores(c.machine, c.ranks, c.bind);
    EXPECT_EQ(division.threads, c.threads) << c.what;
    EXPECT_EQ(division.cpus, c.cpus) << c.what;
  }
}

/// Every division of many machines: no CPU twice, everybody has enough for its threads, no node
/// crossed needlessly.
TEST(DivideCores, HoldsOnManyMachines) {
  for (const int nodes : {1, 2, 3}) {
    for (const int cores : {1, 2, 5, 8}) {
      const auto topology = machine(nodes, cores, 2);
      for (int ranks = 1; ranks <= nodes * cores; ++ranks) {
        SCOPED_TRACE(::testing::Message() << nodes << "x" << cores << ", " << ranks << " ranks");
        const auto division = divide_cores(topology, ranks, Bind::cores);
        ASSERT_EQ(division.cpus.size(), static_cast<std::size_t>(ranks));
        std::set<int> seen;
        for (const auto& cpus : division.cpus) {
          EXPECT_GE(cpus.size(), 2 * static_cast<std::size_t>(division.threads));
          std::set<int> nodes_used;
          for (const int cpu : cpus) {
            EXPECT_TRUE(seen.insert(cpu).second) << "CPU " << cpu << " twice";
            nodes_used.insert(cpu % (nodes * cores) / cores);
          }
          EXPECT_TRUE(ranks < nodes || nodes_used.size() == 1U);
        }
      }
    }
  }
}

Options options_for(int ranks) {
  Options options;
  options.ranks = ranks;
  options.program = "/bin/true";
  return options;
}

std::map<std::string, std::string> variables_of(const Plan& plan, std::size_t rank) {
  return {plan.ranks[rank].variables.begin(), plan.ranks[rank].variables.end()};
}

/// The value of rank 0's variable, "" if it gets none.
std::string variable_of(const std::string& name, const Options& options, const Variables& users) {
  const auto variables = variables_of(make_plan(options, machine(1, 1), users), 0);
  const auto found = variables.find(name);
  return found == variables.end() ? "" : found->second;
}

TEST(Plan, GivesEachRankItsPlace) {
  const auto plan = make_plan(options_for(3), machine(1, 6), {});
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const auto variables = variables_of(plan, rank);
    EXPECT_EQ(variables.at("LOCKSTEP_RANK"), std::to_string(rank));
    EXPECT_EQ(variables.at("LOCKSTEP_WORLD_SIZE"), "3");
    EXPECT_EQ(variables.at("OMP_NUM_THREADS"), "2");
    EXPECT_EQ(variables.at("MALLOC_MMAP_MAX_"), "0");
    EXPECT_EQ(variables.at("MALLOC_TOP_PAD_"), "67108864");
    EXPECT_FALSE(variables.contains("LOCKSTEP_TIMEOUT"));
  }
}

TEST(Plan, LeavesTheUsersSettings) {
  const Variables users{{"OMP_NUM_THREADS", "5"}, {"MALLOC_TOP_PAD_", "1"}};
  const auto plan = make_plan(options_for(2), machine(1, 2), users);
  const auto variables = variables_of(plan, 0);
  EXPECT_FALSE(variables.contains("OMP_NUM_THREADS"));
  EXPECT_FALSE(variables.contains("MALLOC_TOP_PAD_"));
  EXPECT_TRUE(variables.contains("MALLOC_MMAP_MAX_"));
}

TEST(Plan, ReplacesThePlaceOfAnOuterJob) {
  const Variables outer{{"LOCKSTEP_RANK", "7"}, {"LOCKSTEP_WORLD_SIZE", "9"}};
  EXPECT_EQ(variable_of("LOCKSTEP_RANK", options_for(1), outer), "0");
  EXPECT_EQ(variable_of("LOCKSTEP_WORLD_SIZE", options_for(1), outer), "1");
}

TEST(Plan, FreedMemoryAndTimeoutAsAsked) {
  auto options = options_for(1);
  options.keep_freed_memory = false;
  options.timeout = 2.5;
  const auto variables = variables_of(make_plan(options, machine(1, 1), {}), 0);
  EXPECT_FALSE(variables.contains("MALLOC_MMAP_MAX_"));
  EXPECT_EQ(variables.at("MALLOC_MMAP_THRESHOLD_"), "1048576");
  EXPECT_EQ(variables.at("LOCKSTEP_TIMEOUT"), "2.5");
}

TEST(Plan, AsksForHugePagesBesideTheUsersTunables) {
  auto options = options_for(1);
  const auto value = [&](const Variables& users) {
    return variable_of("GLIBC_TUNABLES", options, users);
  };
  EXPECT_EQ(value({}), "glibc.malloc.hugetlb=1");
  EXPECT_EQ(value({{"GLIBC_TUNABLES", ""}}), "glibc.malloc.hugetlb=1");
  EXPECT_EQ(value({{"GLIBC_TUNABLES", "glibc.malloc.check=3"}}),
            "glibc.malloc.check=3:glibc.malloc.hugetlb=1");
  EXPECT_EQ(value({{"GLIBC_TUNABLES", "glibc.malloc.hugetlb=2"}}), "") << "the user's own";
  options.huge_pages = false;
  EXPECT_EQ(value({}), "");
  EXPECT_EQ(value({{"GLIBC_TUNABLES", "glibc.malloc.check=3"}}), "");
}

TEST(Plan, RanksFlushDenormalsUnlessToldOtherwise) {
  auto options = options_for(1);
  const auto value = [&](const Variables& users) {
    return variable_of("LOCKSTEP_FLUSH_DENORMALS", options, users);
  };
  const Variables keep{{"LOCKSTEP_FLUSH_DENORMALS", "0"}};
  EXPECT_EQ(value({}), lockstep::detail::can_flush_denormals ? "1" : "0");
  EXPECT_EQ(value(keep), "") << "the user's own setting is left alone";
  options.flush_denormals = true;
  EXPECT_EQ(value(keep), "1") << "the option goes before the variable";
  options.flush_denormals = false;
  EXPECT_EQ(value({}), "0");
}

TEST(Plan, TellsRanksOfTheInterface) {
  auto options = options_for(1);
  options.interface = "lo";
  EXPECT_EQ(variable_of("LOCKSTEP_INTERFACE", options, {{"LOCKSTEP_INTERFACE", "eth7"}}), "lo");
}

TEST(Describe, ShowsTheConfigurationAndEachRank) {
  auto options = options_for(2);
  options.arguments = {"--flag", "it's two"};
  const auto text = describe(make_plan(options, machine(1, 4, 2), {{"MALLOC_ARENA_MAX", "1"}}));
  EXPECT_THAT(text, HasSubstr("  command    /bin/true --flag 'it'\\''s two'\n"));
  EXPECT_THAT(text, HasSubstr("  cores      4 cores, 8 logical CPUs, 1 NUMA node\n"));
  EXPECT_THAT(text, HasSubstr("  LOCKSTEP_WORLD_SIZE       2\n"));
  EXPECT_THAT(text, HasSubstr("  MALLOC_ARENA_MAX          1  (yours)\n"));
  EXPECT_THAT(text, HasSubstr("  rank  cpus     LOCKSTEP_RANK\n"
                              "  0     0-1,4-5  0\n"
                              "  1     2-3,6-7  1\n"));
}

TEST(Describe, ShowsTheTreatmentOfDenormals) {
  auto options = options_for(1);
  options.flush_denormals = false;
  const auto kept = describe(make_plan(options, machine(1, 1), {}));
  EXPECT_THAT(kept, HasSubstr("  denormals  kept\n"));
  EXPECT_THAT(kept, HasSubstr("  LOCKSTEP_FLUSH_DENORMALS  0\n"));
  options.flush_denormals = {};
  const auto users =
      describe(make_plan(options, machine(1, 1), {{"LOCKSTEP_FLUSH_DENORMALS", "0"}}));
  EXPECT_THAT(users, HasSubstr("  denormals  as LOCKSTEP_FLUSH_DENORMALS, or flushed\n"));
  EXPECT_THAT(users, HasSubstr("  LOCKSTEP_FLUSH_DENORMALS  0  (yours)\n"));
}

TEST(Describe, OfUnboundRanks) {
  auto options = options_for(3);
  const auto text = describe(make_plan(options, machine(1, 2), {}));
  EXPECT_THAT(text, HasSubstr("none: more ranks than logical CPUs"));
  EXPECT_THAT(text, HasSubstr("  2     any   2\n"));
}

TEST(Launch, IsAFunctionToo) {
  auto options = options_for(2);
  EXPECT_EQ(run(make_plan(options)), 0);
  options.program = "/bin/false";
  options.quiet = true;
  ::testing::internal::CaptureStderr();
  const int code = run(make_plan(options));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("ended with exit code 1"));
  EXPECT_EQ(code, 1);
}

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

TEST(NodePlace, IsThatOfSlurmIfNoLauncherRunsInItsStep) {
  auto both = pytorch_job;
  both.insert(both.end(), {{"SLURM_STEP_NUM_NODES", "8"}, {"SLURM_NODEID", "7"}});
  expect_place(find_place({}, both), 1, 2, "h0", 23456);
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
