#include "core/system/topology.h"

#include <sched.h>

#include <vector>

#include "tests/matchers.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

using namespace testing;
using Core = Topology::Core;

/// A tree like /sys/devices/system, written file by file.
struct FakeTree : TemporaryFolder {
  void cpu(int number, int package, const std::string& siblings) {
    const auto prefix = "cpu/cpu" + std::to_string(number) + "/topology/";
    write(prefix + "physical_package_id", std::to_string(package) + '\n');
    write(prefix + "thread_siblings_list", siblings + '\n');
  }
  void node(int number, const std::string& cpus) {
    write("node/node" + std::to_string(number) + "/cpulist", cpus + '\n');
  }
  Topology read(const std::vector<int>& allowed) const { return Topology::read(path(), allowed); }
};

TEST(CpuList, IsReadAndWrittenAsRanges) {
  EXPECT_THAT(parse_cpu_list("0-3,8"), ElementsAre(0, 1, 2, 3, 8));
  EXPECT_THAT(parse_cpu_list("5"), ElementsAre(5));
  EXPECT_THAT(parse_cpu_list(""), IsEmpty());
  EXPECT_THAT(parse_cpu_list("x,1,-2,3-,9-7,4"), ElementsAre(1, 4));
  EXPECT_THAT(parse_cpu_list("0-99999999999,2"), ElementsAre(2));
  EXPECT_EQ(format_cpu_list(std::vector<int>{0, 1, 2, 3, 8}), "0-3,8");
  EXPECT_EQ(format_cpu_list(std::vector<int>{1, 3, 5, 6}), "1,3,5-6");
  EXPECT_EQ(format_cpu_list(std::vector<int>{}), "");
}

TEST(Topology, GroupsSmtSiblings) {
  FakeTree tree;
  tree.cpu(0, 0, "0,2");
  tree.cpu(1, 0, "1,3");
  tree.cpu(2, 0, "0,2");
  tree.cpu(3, 0, "1,3");
  tree.node(0, "0-3");
  const auto topology = tree.read({0, 1, 2, 3});
  EXPECT_THAT(topology.cores, ElementsAre(Core{0, 0, {0, 2}}, Core{0, 0, {1, 3}}));
  EXPECT_THAT(topology.nodes(), ElementsAre(0));
  // Without a processor that is not allowed, also where it is the first of its list.
  EXPECT_THAT(tree.read({1, 2, 3}).cores, ElementsAre(Core{0, 0, {2}}, Core{0, 0, {1, 3}}));
  EXPECT_THAT(tree.read({0, 1, 3}).cores, ElementsAre(Core{0, 0, {0}}, Core{0, 0, {1, 3}}));
}

TEST(Topology, OrdersByNodeThenPackage) {
  FakeTree tree;  // even CPUs on node 1, odd ones on node 0
  for (int cpu = 0; cpu < 4; ++cpu) tree.cpu(cpu, 1 - cpu % 2, std::to_string(cpu));
  tree.node(0, "1,3");
  tree.node(1, "0,2");
  const auto topology = tree.read({0, 1, 2, 3});
  EXPECT_THAT(topology.cores,
              ElementsAre(Core{0, 0, {1}}, Core{0, 0, {3}}, Core{1, 1, {0}}, Core{1, 1, {2}}));
  EXPECT_THAT(topology.nodes(), ElementsAre(0, 1));
}

TEST(Topology, WithoutATreeEachCpuIsACore) {
  const FakeTree tree;
  EXPECT_THAT(tree.read({2, 5}).cores, ElementsAre(Core{0, 0, {2}}, Core{0, 0, {5}}));
}

TEST(Topology, SurvivesNonsense) {
  FakeTree tree;
  tree.write("cpu/cpu0/topology/thread_siblings_list", "?");
  tree.write("cpu/cpu0/topology/physical_package_id", "-1");
  tree.write("node/node/cpulist", "0");
  tree.write("node/nodeX/cpulist", "0");
  EXPECT_THAT(tree.read({0}).cores, ElementsAre(Core{0, 0, {0}}));
}

TEST(Topology, OfThisProcessIsItsAffinityMask) {
  cpu_set_t mask;
  ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
  std::vector<int> expected;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<std::size_t>(cpu), &mask)) expected.push_back(cpu);
  }
  EXPECT_THAT(Topology::read().cpus(), ::testing::UnorderedElementsAreArray(expected));
}

}  // namespace
}  // namespace lockstep
