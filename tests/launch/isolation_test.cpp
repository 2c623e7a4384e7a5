#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "core/text.h"
#include "tests/launch/launched.h"
#include "tests/matchers.h"

namespace lockstep::testing {
namespace {

using lockstep::detail::concat;
using ::testing::IsSupersetOf;

/// The targets of a process's open descriptors.
std::multiset<std::string> open_files(pid_t pid) {
  std::multiset<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(concat("/proc/", pid, "/fd"))) {
    std::error_code gone;
    files.insert(std::filesystem::read_symlink(entry.path(), gone).string());
  }
  return files;
}

std::string text_of(const std::multiset<std::string>& files) {
  std::string text;
  for (const auto& file : files) text += file + '\n';
  return text;
}

TEST(World, IsNotInheritedBeyondItsRanks) {
  const auto ended = run_lockstep({"-n", "2", rank_program(), "descriptors", "1"});
  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(ended.out, Not(HasSubstr("inheritable"))) << ended.out;
  EXPECT_THAT(ended.out, Not(HasSubstr("socket"))) << ended.out;
}

/// While a job runs: launcher, guardian and ranks use no socket, only ranks and the launcher hold
/// the world's memory, and it has no name in any file system. The flight record of each rank has
/// a name, and only the user can open it.
TEST(World, IsHeldByItsProcessesAlone) {
  const auto names_before = shared_memory_names();
  Launched job({lockstep_program(), "run", "-n", "2", rank_program(), "stubborn", "1"});
  job.await_output("pid ", 2);
  job.await_output("ready");

  EXPECT_THAT(names_before, IsSupersetOf(shared_memory_names()));
  const auto records = flight_records(job.pid());
  EXPECT_THAT(records, SizeIs(2));
  for (const auto& path : records) {
    struct stat status {};
    EXPECT_EQ(stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600U);
  }
  EXPECT_THAT(text_of(open_files(job.pid())), HasSubstr("memfd"));
  const auto guardians = guardians_of(job.pid());
  EXPECT_THAT(guardians, SizeIs(1));
  for (const auto pid : children_of(job.pid())) {
    const auto files = text_of(open_files(pid));
    EXPECT_THAT(files, Not(HasSubstr("socket"))) << name_of(pid);
    if (std::ranges::find(guardians, pid) == guardians.end()) continue;
    EXPECT_EQ(open_files(pid).size(), 4U) << files;  // three standard streams and its pipe
    EXPECT_THAT(files, Not(HasSubstr("memfd")));
  }
  EXPECT_THAT(text_of(open_files(job.pid())), Not(HasSubstr("socket")));
}

/// A program cannot join a world by its variables alone.
TEST(World, CannotBeJoinedByAnUnrelatedProcess) {
  const auto refused = [](const std::string& descriptor) {
    const auto ended = Launched({rank_program(), "finish"}, {{"LOCKSTEP_RANK", "1"},
                                                             {"LOCKSTEP_WORLD_SIZE", "2"},
                                                             {"LOCKSTEP_ARENA_FD", descriptor}})
                           .wait();
    EXPECT_EQ(ended.code, 1) << ended.err;
    EXPECT_NE(ended.err, "");
  };
  Launched job({lockstep_program(), "run", "-n", "2", rank_program(), "never-init", "1"});
  job.await_output("pid ", 2);
  refused("200");  // not open
  refused("0");    // open, but something else
}

}  // namespace
}  // namespace lockstep::testing
