#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "core/system/topology.h"
#include "core/text.h"
#include "tests/launch/launched.h"
#include "tests/matchers.h"
#include "tests/temporary_folder.h"

namespace lockstep::testing {
namespace {

using lockstep::detail::concat;

std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

TEST(LogFolder, IsOneJobsAtATime) {
  const TemporaryFolder folder;
  const auto logs = folder.path().string();
  Launched first({lockstep_program(), "run", "-n", "1", "--log-dir", logs, "sh", "-c",
                  "echo id $LOCKSTEP_RUN_ID; exec sleep 1000"});
  first.await_output("\n");
  const auto id = first.output().substr(3, first.output().find('\n') - 3);
  EXPECT_EQ(id.size(), 16U);
  for (const char* restarts : {"0", "2"}) {
    const auto second =
        run_lockstep({"-n", "2", "--max-restarts", restarts, "--log-dir", logs, "echo", "started"});
    EXPECT_EQ(second.code, 2);
    EXPECT_EQ(second.out, "");
    EXPECT_THAT(second.err,
                AllOf(HasSubstr(concat("lockstep: --log-dir ", logs,
                                       ": another job writes to this "
                                       "folder: run ",
                                       id, " on host ", lockstep::detail::host_name(), ", pid ",
                                       first.pid(), ", since 20")),
                      HasSubstr("Wait for its end or stop it, or name another folder.")));
  }
  EXPECT_EQ(contents(folder / "rank-0.out"), first.output()) << "the first one's log is lost";
  kill(first.pid(), SIGTERM);
  first.wait();
  EXPECT_EQ(run_lockstep({"-n", "1", "--log-dir", logs, "echo", "second"}).code, 0);
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"rank-0.out", "rank-0.err"}));
}

TEST(LogFolder, IsFreeAfterAJobThatWasKilled) {
  const TemporaryFolder folder;
  const auto logs = folder.path().string();
  {
    Launched killed({lockstep_program(), "run", "-n", "1", "--log-dir", logs, "sh", "-c",
                     "echo started; exec sleep 1000"});
    killed.await_output("started");
    kill(killed.pid(), SIGKILL);
    killed.wait();
    EXPECT_TRUE(await_all_ended(std::chrono::seconds(20)));
  }
  EXPECT_EQ(run_lockstep({"-n", "1", "--log-dir", logs, "true"}).code, 0);
}

TEST(LogFolder, IsKeptThroughRestarts) {
  const TemporaryFolder folder;
  Launched job({lockstep_program(), "run", "-n", "1", "--max-restarts", "1", "--restart-delay", "0",
                "--log-dir", folder.path().string(), "sh", "-c",
                "[ $LOCKSTEP_RESTART_COUNT = 1 ] || exit 1; echo again; exec sleep 1000"});
  job.await_output("again");
  EXPECT_EQ(run_lockstep({"-n", "1", "--log-dir", folder.path().string(), "true"}).code, 2);
}

TEST(LogFiles, FollowNoLink) {
  const TemporaryFolder folder;
  std::ofstream(folder / "precious") << "data";
  std::filesystem::create_directory(folder / "logs");
  std::filesystem::create_symlink("../precious", folder / "logs" / "rank-1.out");
  const auto ended =
      run_lockstep({"-n", "2", "--log-dir", (folder / "logs").string(), "echo", "started"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_EQ(ended.out, "");
  EXPECT_THAT(ended.err,
              HasSubstr("/logs/rank-1.out': it is a symbolic link to ../precious, expected "
                        "a file; remove it, or name another folder"));
  EXPECT_EQ(contents(folder / "precious"), "data");
}

TEST(LogFiles, WaitForNoReaderOfAFifo) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "rank-0.err").c_str(), 0600), 0);
  const auto ended =
      run_lockstep({"-n", "2", "--log-dir", folder.path().string(), "echo", "started"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err, HasSubstr("/rank-0.err': it is not a regular file"));
}

TEST(LogFiles, OfALinkedFolderAreWritten) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "scratch");
  std::filesystem::create_directory_symlink("scratch", folder / "logs");
  EXPECT_EQ(run_lockstep({"-n", "1", "--log-dir", (folder / "logs").string(), "echo", "out"}).code,
            0);
  EXPECT_EQ(contents(folder / "scratch" / "rank-0.out"), "out\n");
}

}  // namespace
}  // namespace lockstep::testing
