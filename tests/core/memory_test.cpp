#include "core/system/memory.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>
#include <thread>

#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

std::int64_t page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

/// Page faults of taking so many bytes, writing all of them, and giving them back.
std::int64_t faults_of_using(std::size_t bytes) {
  const auto before = page_faults();
  void* block = std::malloc(bytes);
  std::memset(block, 1, bytes);
  // Keeps the compiler from removing the store to memory that is never read.
  asm volatile("" : : "r"(block) : "memory");
  std::free(block);
  return page_faults() - before;
}

/// Of the heap, by the allocator's own account.
std::size_t bytes_in_use() {
  const auto info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

constexpr std::size_t megabyte = std::size_t{1} << 20;

// Both settings are the process's for good, so this is one test: as on a thread, so that the arena
// is the shared one.
TEST(Memory, IsPopulatedAndKept) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers have a malloc of their own";
#endif
  EXPECT_GT(faults_of_using(16 * megabyte), 1000) << "as glibc does";
  use_one_arena();
  keep_freed_memory();
  populate_heap(48 * megabyte);
  EXPECT_LT(faults_of_using(40 * megabyte), 100) << "populated";
  std::thread([] { EXPECT_LT(faults_of_using(40 * megabyte), 100) << "of all threads"; }).join();
  EXPECT_LT(faults_of_using(40 * megabyte), 100) << "kept";
}

TEST(Memory, PopulatesWhatThereIs) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers have a malloc of their own";
#endif
  const auto before = page_faults();
  const auto bytes_before = bytes_in_use();
  populate_heap(0);
  populate_heap(1);
  populate_heap(std::numeric_limits<std::size_t>::max() / 2);  // malloc refuses
  EXPECT_LT(page_faults() - before, 100) << "nothing was populated";
  populate_heap(16 * megabyte);
  // The allocator keeps a few small blocks for later.
  EXPECT_LT(bytes_in_use(), bytes_before + megabyte) << "everything was given back";
}

using Bytes = std::optional<std::size_t>;

/// A machine's /proc and /sys, made up.
class Machine : public ::testing::Test {
 protected:
  void write(const std::string& file, const std::string& text) const { folder_.write(file, text); }
  Bytes limit() const { return bytes(groups().limit()); }
  Bytes available() const { return bytes(groups().available()); }
  MemoryGroups groups() const { return MemoryGroups(folder_.path()); }
  std::filesystem::path path(const std::string& file) const { return folder_ / file; }

 private:
  static Bytes bytes(const std::optional<MemoryGroups::Limit>& found) {
    return found ? Bytes(found->bytes) : std::nullopt;
  }
  testing::TemporaryFolder folder_;
};

TEST_F(Machine, WithoutGroupsHasNoLimit) {
  EXPECT_EQ(limit(), std::nullopt);
  EXPECT_EQ(available(), std::nullopt);
  EXPECT_EQ(groups().oom_kills(), 0U);
  write("proc/vmstat", "nr_free_pages 5\noom_kill 3\n");
  EXPECT_EQ(groups().oom_kills(), 3U);
  EXPECT_EQ(groups().oom_scope(), "this host");
}

TEST_F(Machine, LeastLimitOfNestedGroupsOfVersion2) {
  write("proc/self/cgroup", "0::/slurm/job_7/step_0\n");
  write("sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
  write("sys/fs/cgroup/slurm/memory.max", "max\n");
  write("sys/fs/cgroup/slurm/memory.current", "90000\n");
  write("sys/fs/cgroup/slurm/job_7/memory.max", "1000000\n");
  write("sys/fs/cgroup/slurm/job_7/memory.current", "700000\n");
  write("sys/fs/cgroup/slurm/job_7/memory.stat",
        "anon 5\nfile 9\ninactive_file 100000\nactive_file 50000\n");
  write("sys/fs/cgroup/slurm/job_7/step_0/memory.max", "2000000\n");
  write("sys/fs/cgroup/slurm/job_7/step_0/memory.current", "1900000\n");
  EXPECT_EQ(limit(), 1000000U);
  EXPECT_EQ(groups().limit()->group, path("sys/fs/cgroup/slurm/job_7"));
  EXPECT_EQ(available(), 100000U) << "of step_0, the first to be full";
  write("sys/fs/cgroup/slurm/job_7/step_0/memory.max", "max\n");
  EXPECT_EQ(available(), 450000U) << "file pages can be dropped";
}

TEST_F(Machine, LimitOfTheRootOfANamespaceOfVersion2) {
  // In a container with a namespace of its own, and of a group outside that.
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "4096\n");
  write("sys/fs/cgroup/memory.current", "5000\n");
  EXPECT_EQ(limit(), 4096U);
  EXPECT_EQ(available(), 0U);
  write("proc/self/cgroup", "0::/../../elsewhere\n");
  EXPECT_EQ(limit(), 4096U);
}

TEST_F(Machine, LimitsOfVersion1) {
  write("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/batch/job\n0::/\n");
  const std::string top = "sys/fs/cgroup/memory/";
  write("sys/fs/cgroup/unified/cgroup.controllers", "hugetlb\n");
  write(top + "memory.limit_in_bytes", "9223372036854771712\n");
  write(top + "batch/memory.limit_in_bytes", "8000000\n");
  write(top + "batch/memory.usage_in_bytes", "6000000\n");
  write(top + "batch/memory.stat", "inactive_file 7\ntotal_inactive_file 500000\n");
  write(top + "batch/job/memory.limit_in_bytes", "9223372036854771712\n");
  write(top + "batch/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
  EXPECT_EQ(limit(), 8000000U);
  EXPECT_EQ(available(), 2500000U);
  EXPECT_EQ(groups().oom_kills(), 2U);
  EXPECT_EQ(groups().oom_scope(),
            "control group " + path(top + "batch/job").string() + ", limit 7 MiB");
}

TEST_F(Machine, MountedPartOfTheTree) {
  // Docker with version 1: the container's group is what is mounted.
  write("proc/self/cgroup", "4:memory:/docker/abc\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "5000\n");
  EXPECT_EQ(limit(), 5000U);
}

TEST_F(Machine, CountsProcessesThatMemoryEnded) {
  write("proc/self/cgroup", "0::/job\n");
  write("proc/vmstat", "oom_kill 100\n");
  write("sys/fs/cgroup/job/memory.events", "low 0\nhigh 0\nmax 4\noom 1\noom_kill 1\n");
  EXPECT_EQ(groups().oom_kills(), 1U);
  EXPECT_EQ(groups().oom_scope(), "control group " + path("sys/fs/cgroup/job").string());
}

TEST_F(Machine, NonsenseIsNoLimit) {
  write("proc/self/cgroup", "\n::\n0:\nx\n0::/job\n4:memory\n");
  write("sys/fs/cgroup/job/memory.max", "lots\n");
  write("sys/fs/cgroup/job/memory.events", "oom_kill\noom_kill many\n");
  EXPECT_EQ(limit(), std::nullopt);
  EXPECT_EQ(groups().oom_kills(), 0U);
}

TEST(MemoryGroups, OfThisProcessCanBeRead) {
  const MemoryGroups groups;
  EXPECT_NE(groups.oom_scope(), "");
  if (const auto limit = groups.limit()) {
    EXPECT_LE(groups.available()->bytes, limit->bytes);
  }
}

}  // namespace
}  // namespace lockstep
