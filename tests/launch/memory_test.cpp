#include "core/system/memory.h"

#include <sys/stat.h>
#include <unistd.h>

#include "tests/launch/launched.h"

namespace lockstep::testing {
namespace {

/// A control group of the test's own whose processes may take so much memory. False where this
/// container may make none, and in sanitized builds.
class LimitedGroup {
 public:
  explicit LimitedGroup(std::size_t bytes) {
    if (is_sanitized) return;  // its own memory exceeds any limit that a rank is to exceed
    const auto name = concat("lockstep-test-", ::getpid());
    // Version 1, then version 2 where the controller is handed down.
    for (const auto& [top, file] : {std::pair("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                                    std::pair("/sys/fs/cgroup", "memory.max")}) {
      folder_ = std::filesystem::path(top) / name;
      if (::mkdir(folder_.c_str(), 0755) != 0) continue;
      std::ofstream limit(folder_ / file);
      limit << bytes << std::flush;
      works_ = limit.good() && std::filesystem::exists(folder_ / "cgroup.procs");
      if (works_) return;
      ::rmdir(folder_.c_str());
    }
  }
  ~LimitedGroup() {
    if (works_) ::rmdir(folder_.c_str());
  }
  LimitedGroup(const LimitedGroup&) = delete;
  LimitedGroup& operator=(const LimitedGroup&) = delete;

  explicit operator bool() const { return works_; }
  const std::filesystem::path& folder() const { return folder_; }

  /// Runs `lockstep` with these arguments in the group.
  Ended run(const std::string& arguments) const {
    const auto enter = concat("echo $$ > ", (folder_ / "cgroup.procs").string(), " && ");
    return run_in_shell(arguments, enter);
  }

 private:
  std::filesystem::path folder_;
  bool works_ = false;
};

constexpr std::size_t megabyte = std::size_t{1} << 20;

TEST(OutOfMemory, IsNamedAsTheCauseOfASigkill) {
  const LimitedGroup group(64 * megabyte);
  if (!group) GTEST_SKIP() << "no control group with a memory limit can be made here";
  const auto expected = concat("; the kernel ended a process of control group ",
                               group.folder().string(), ", limit 64 MiB because memory was short");
  const auto ended = group.run(concat("run -n 2 ", quoted(rank_program()), " take-memory 1"));
  EXPECT_EQ(ended.code, 128 + SIGKILL) << ended.err;
  EXPECT_FALSE(ended.by_signal) << "the launcher was ended itself";
  EXPECT_THAT(ended.err, HasSubstr("rank 1 of 2 failed first: it was ended by SIGKILL" + expected));
  const auto in_shell =
      group.run(concat("run -n 2 sh -c '", quoted(rank_program()), " take-memory 1; exit $?'"));
  EXPECT_THAT(in_shell.err,
              HasSubstr("rank 1 of 2 failed first: it ended with exit code 137" + expected));
}

TEST(OutOfMemory, LimitOfANestedGroupIsSeen) {
  const LimitedGroup group(64 * megabyte);
  if (!group) GTEST_SKIP() << "no control group with a memory limit can be made here";
  EXPECT_THAT(group.run("doctor").out, HasSubstr("memory limit  64 MiB, "));
  const auto ended = group.run(concat("run -n 2 ", quoted(rank_program()), " share-memory 1"));
  EXPECT_EQ(ended.code, 1) << ended.err;
  EXPECT_THAT(
      ended.err,
      AllOf(HasSubstr(
                "cannot allocate 268435456 bytes of shared memory: its heap has 67108864 bytes"),
            HasSubstr(concat("; it is limited by the memory of control group ",
                             group.folder().string(), ": raise its limit"))));
}

TEST(OutOfMemory, EndsRanksBeforeTheirLauncher) {
  const auto ended = run_lockstep(
      {"-n", "1", "sh", "-c", "cat /proc/$PPID/oom_score_adj /proc/self/oom_score_adj"});
  int launcher = 0, rank = 0;
  std::istringstream(ended.out) >> launcher >> rank;
  EXPECT_EQ(rank, std::min(launcher + 300, 1000)) << ended.out;
}

}  // namespace
}  // namespace lockstep::testing
