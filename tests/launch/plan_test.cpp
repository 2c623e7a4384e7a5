#include "launch/plan.h"

#include <algorithm>

#include "core/system/denormals_guard.h"
#include "lockstep/denormals.h"
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

using Settings = std::map<std::string, std::string>;

Settings variables_of(const Plan& plan, std::size_t rank = 0) {
  return {plan.ranks[rank].variables.begin(), plan.ranks[rank].variables.end()};
}

TEST(Plan, GivesEachRankItsPlace) {
  const auto plan = make_plan(options_for(3), machine(1, 6), {});
  for (std::size_t rank = 0; rank < 3; ++rank) {
    auto variables = variables_of(plan, rank);
    EXPECT_EQ(variables["LOCKSTEP_RANK"], std::to_string(rank));
    EXPECT_EQ(variables["LOCKSTEP_WORLD_SIZE"], "3");
    EXPECT_EQ(variables["OMP_NUM_THREADS"], "2");
    EXPECT_EQ(variables["MALLOC_MMAP_MAX_"], "0");
    EXPECT_EQ(variables["UCX_DEBUG_SIGNO"], "0");
    EXPECT_EQ(variables["MALLOC_TOP_PAD_"], "67108864");
    EXPECT_FALSE(variables.contains("LOCKSTEP_TIMEOUT"));
  }
}

/// A rank gets these for options, beside the user's variables and in place of an outer job's.
TEST(Plan, GivesTheVariablesThatUserAndOptionsAskFor) {
  struct Case {
    const char* variable;
    std::string value;  ///< "": the rank gets none
    Variables users = {};
    void (*ask)(Options&) = [](Options&) {};
  };
  const std::string tunables = "GLIBC_TUNABLES", flush = "LOCKSTEP_FLUSH_DENORMALS";
  const Variables check{{tunables, "glibc.malloc.check=3"}}, keep{{flush, "0"}};
  const auto drop_freed = [](Options& options) { options.keep_freed_memory = false; };
  const auto small_pages = [](Options& options) { options.huge_pages = false; };
  for (const auto& [variable, value, users, ask] : std::vector<Case>{
           {"OMP_NUM_THREADS", "", {{"OMP_NUM_THREADS", "5"}}},
           {"OMP_NUM_THREADS", "1", {{"OMP_NUM_THREADS", ""}}},
           {"MALLOC_TOP_PAD_", "", {{"MALLOC_TOP_PAD_", "1"}}},
           {"MALLOC_MMAP_MAX_", "0", {{"MALLOC_TOP_PAD_", "1"}}},
           {"LOCKSTEP_RANK", "0", {{"LOCKSTEP_RANK", "7"}}},
           {"LOCKSTEP_WORLD_SIZE", "1", {{"LOCKSTEP_WORLD_SIZE", "9"}}},
           {"LOCKSTEP_INTERFACE",
            "lo",
            {{"LOCKSTEP_INTERFACE", "eth7"}},
            [](Options& options) { options.interface = "lo"; }},
           {"LOCKSTEP_TRACE",
            "/inner",
            {{"LOCKSTEP_TRACE", "/outer"}},
            [](Options& options) { options.log_directory = "/inner"; }},
           {"MALLOC_MMAP_MAX_", "", {}, drop_freed},
           {"MALLOC_MMAP_THRESHOLD_", "1048576", {}, drop_freed},
           {"LOCKSTEP_TIMEOUT", "2.5", {}, [](Options& options) { options.timeout = 2.5; }},
           {"GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"},
           {"GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", {{tunables, ""}}},
           {"GLIBC_TUNABLES", "glibc.malloc.check=3:glibc.malloc.hugetlb=1", check},
           {"GLIBC_TUNABLES", "", {{tunables, "glibc.malloc.hugetlb=2"}}},
           {"GLIBC_TUNABLES", "", {}, small_pages},
           {"GLIBC_TUNABLES", "", check, small_pages},
           {"LOCKSTEP_FLUSH_DENORMALS", lockstep::detail::can_flush_denormals ? "1" : "0"},
           {"LOCKSTEP_FLUSH_DENORMALS", "", keep},
           {"LOCKSTEP_FLUSH_DENORMALS", "1", keep,
            [](Options& options) { options.flush_denormals = true; }},
           {"LOCKSTEP_FLUSH_DENORMALS", "0", {}, [](Options& options) {
              options.flush_denormals = false;
            }}}) {
    auto options = options_for(1);
    ask(options);
    auto variables = variables_of(make_plan(options, machine(1, 1), users));
    EXPECT_EQ(variables.contains(variable), !value.empty()) << variable;
    EXPECT_EQ(variables[variable], value);
  }
}

TEST(Describe, ShowsTheConfigurationAndEachRank) {
  auto options = options_for(2);
  options.arguments = {"--flag", "it's two"};
  const Variables users{{"MALLOC_ARENA_MAX", "1"}, {"LOCKSTEP_FLUSH_DENORMALS", "0"}};
  const auto text = describe(make_plan(options, machine(1, 4, 2), users));
  EXPECT_THAT(text, HasSubstr("  command  /bin/true --flag 'it'\\''s two'\n"));
  EXPECT_THAT(text, HasSubstr("  cores    4 cores, 8 logical CPUs, 1 NUMA node\n"));
  EXPECT_THAT(text, HasSubstr("  LOCKSTEP_WORLD_SIZE       2\n"));
  EXPECT_THAT(text, HasSubstr("  MALLOC_ARENA_MAX          1  (yours)\n"));
  EXPECT_THAT(text, HasSubstr("  LOCKSTEP_FLUSH_DENORMALS  0  (yours)\n"));
  EXPECT_THAT(text, HasSubstr("  rank  cpus\n"
                              "  0     0-1,4-5\n"
                              "  1     2-3,6-7\n"));
}

TEST(Describe, OfUnboundRanks) {
  EXPECT_THAT(describe(make_plan(options_for(3), machine(1, 2), {})),
              AllOf(HasSubstr("none: more ranks than logical CPUs"), HasSubstr("  2     any\n")));
}

/// As "1 of 2 at h0:29500".
std::string place(const NodeOptions& options, const Variables& environment) {
  const auto found = find_place(options, environment);
  return concat(found.number, " of ", found.count, " at ", found.host, ':', found.port);
}

const Variables pytorch_job{
    {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h0"}, {"MASTER_PORT", "23456"}};

TEST(NodePlace, IsThisHostAlone) {
  const auto alone = "0 of 1 at :0";
  EXPECT_EQ(place({}, {}), alone);
  EXPECT_EQ(place({.count = 1}, pytorch_job), alone);
  EXPECT_EQ(place({.standalone = true}, pytorch_job), alone);
  EXPECT_EQ(place({}, {{"RANK", "0"}, {"WORLD_SIZE", "1"}}), alone);
  EXPECT_EQ(place({}, {{"PET_NNODES", "1"}, {"SLURM_STEP_NUM_NODES", "1"}}), alone);
  EXPECT_EQ(place({}, {{"JOB_COMPLETION_INDEX", "3"}}), alone);
}

TEST(NodePlace, IsThatOfTheOptions) {
  const auto of = [](int count, int number, const char* master) {
    return place({.count = count, .number = number, .master = master}, {});
  };
  EXPECT_EQ(of(3, 2, "h0:4711"), "2 of 3 at h0:4711");
  EXPECT_EQ(of(2, 0, "h0"), "0 of 2 at h0:29500");
  EXPECT_EQ(of(2, 0, "[fd00::1]:4711"), "0 of 2 at fd00::1:4711");
  EXPECT_EQ(of(2, 0, "fd00::1"), "0 of 2 at fd00::1:29500");
  EXPECT_EQ(place({.count = 4, .number = 3, .master = "other:1"}, pytorch_job),
            "3 of 4 at other:1");
}

TEST(NodePlace, IsThatOfTheEnvironment) {
  EXPECT_EQ(place({}, pytorch_job), "1 of 2 at h0:23456");
  EXPECT_EQ(place({}, {{"PET_NNODES", "3"},
                       {"PET_NODE_RANK", "2"},
                       {"PET_MASTER_ADDR", "trainer-0"},
                       {"PET_MASTER_PORT", "29400"}}),
            "2 of 3 at trainer-0:29400");
  EXPECT_EQ(place({.count = 4, .master = "job-0.job"}, {{"JOB_COMPLETION_INDEX", "3"}}),
            "3 of 4 at job-0.job:29500");
  EXPECT_EQ(place({.master = "h9:1"}, pytorch_job), "1 of 2 at h9:1");
}

TEST(NodePlace, IsThatOfSlurmIfNoLauncherRunsInItsStep) {
  auto both = pytorch_job;
  both.insert(both.end(), {{"SLURM_STEP_NUM_NODES", "8"}, {"SLURM_NODEID", "7"}});
  EXPECT_EQ(place({}, both), "1 of 2 at h0:23456");
  for (const auto& [list, first] : {std::pair("gpu[07-09,11],other", "gpu07"),
                                    {"gpu[3,5]", "gpu3"},
                                    {"a,b[1-2]", "a"},
                                    {"a", "a"}}) {
    const Variables step{{"SLURM_STEP_NUM_NODES", "2"},
                         {"SLURM_NODEID", "1"},
                         {"SLURM_STEP_NODELIST", list},
                         {"SLURM_NNODES", "4"}};
    EXPECT_EQ(place({}, step), concat("1 of 2 at ", first, ":29500"));
  }
}

TEST(NodePlace, IsRefusedWithTheVariables) {
  const struct {
    NodeOptions options;
    Variables environment;
    const char* text;
  } cases[] = {
      {{},
       {{"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h0"}},
       "WORLD_SIZE=2, RANK unset, MASTER_ADDR=h0, MASTER_PORT unset"},
      {{}, {{"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h0"}}, "--standalone"},
      {{}, {{"PET_NNODES", "1:2"}, {"PET_NODE_RANK", "0"}}, "PET_NNODES=1:2"},
      {{}, {{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h0"}}, "RANK=2"},
      // A batch script, whose only launcher would wait for others.
      {{}, {{"SLURM_NNODES", "2"}, {"SLURM_NODEID", "0"}}, "SLURM_NNODES=2"},
      {{.count = 2}, {}, "got --nnodes 2; expected"},
      {{.count = 2, .number = 2, .master = "h0"}, {}, "--nnodes 2 --node-rank 2 --master h0"},
      {{.count = 2, .number = 0, .master = "h0:99999"}, {}, "--master h0:99999"},
      {{.count = 2, .number = 0, .master = "fd00::1:29500"}, {}, "[ADDRESS]:PORT for IPv6"},
      {{.count = 0}, {}, "--nnodes 0"},
      {{.number = 1}, {}, "add --nnodes"},
      {{.count = 2, .standalone = true}, {}, "--standalone"}};
  for (const auto& one : cases) {
    EXPECT_THAT(message_of<InvalidArgument>([&] { find_place(one.options, one.environment); }),
                HasSubstr(one.text));
  }
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
  EXPECT_THAT(refused, ends(2, {"RANK=1, MASTER_ADDR unset"}));
  EXPECT_EQ(refused.out, "");
  EXPECT_THAT(run_lockstep({"--standalone", "echo", "started"},
                           {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"PET_NPROC_PER_NODE", "2"}}),
              prints({"started\n", "[1] started\n"}));
  EXPECT_THAT(run_lockstep({"--dry-run", "-n", "1", "true"},
                           {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h0"}}),
              prints({"1 of 2, node 0 listens at h0 port 29500 (WORLD_SIZE=2, RANK=1"}));
}

}  // namespace
}  // namespace lockstep::launch
