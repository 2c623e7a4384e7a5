#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "core/system/topology.h"
#include "tests/launch/launched.h"

namespace lockstep::testing {
namespace {

TEST(LogFolder, IsOneJobsAtATime) {
  const TemporaryFolder folder;
  const auto logs = folder.path().string();
  Launched first(run_command(
      {"-n", "1", "--log-dir", logs, "sh", "-c", "echo id $LOCKSTEP_RUN_ID; exec sleep 1000"}));
  first.await_output("\n");
  const auto id = first.output().substr(3, first.output().find('\n') - 3);
  EXPECT_EQ(id.size(), 16U);
  const TemporaryFolder links;
  const auto link = (links / "link").string();
  std::filesystem::create_directory_symlink(folder.path(), link);
  for (const auto& [restarts, path] : {std::pair("0", logs), std::pair("2", link)}) {
    const auto second = run_cli(
        {"run", "-n", "2", "--max-restarts", restarts, "--log-dir", path, "echo", "started"});
    EXPECT_EQ(second.out, "");
    const auto first_job = concat("run ", id, " on host ", lockstep::detail::host_name(), ", pid ",
                                  first.pid(), ", since 20");
    EXPECT_THAT(second, ends(2, {concat("lockstep: --log-dir ", path,
                                        ": another job writes to this folder: ", first_job),
                                 " UTC. Wait for its end or stop it, or name another folder."}));
  }
  EXPECT_EQ(content(folder / "rank-0.out"), first.output()) << "the first one's log is lost";
  // A job that was killed leaves the folder free.
  first.send(SIGKILL);
  first.wait();
  EXPECT_TRUE(await_all_ended(std::chrono::seconds(20)));
  // Records of the first one that explain would mix with those of the second.
  for (const char* earlier : {"rank-5.flight", "rank-5.stacks"}) std::ofstream(folder / earlier);
  EXPECT_EQ(run_lockstep({"-n", "1", "--log-dir", logs, "echo", "second"}).code, 0);
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    names.insert(entry.path().filename().string());
  EXPECT_EQ(names, (std::set<std::string>{"rank-0.out", "rank-0.err"}));
}

TEST(LogFolder, IsKeptThroughRestarts) {
  const TemporaryFolder folder;
  Launched job(
      run_command({"-n", "1", "--max-restarts", "1", "--restart-delay", "0", "--log-dir",
                   folder.path().string(), "sh", "-c",
                   "[ $LOCKSTEP_RESTART_COUNT = 1 ] || exit 1; echo again; exec sleep 1000"}));
  job.await_output("again");
  EXPECT_EQ(run_cli({"run", "-n", "1", "--log-dir", folder.path().string(), "true"}).code, 2);
}

TEST(LogFiles, ThatAreNoFilesStartNothing) {
  const TemporaryFolder folder;
  std::ofstream(folder / "precious") << "data";
  std::filesystem::create_directories(folder / "folder" / "rank-1.err");
  for (const char* logs : {"link", "fifo"}) std::filesystem::create_directory(folder / logs);
  std::filesystem::create_symlink("../precious", folder / "link" / "rank-1.out");
  ASSERT_EQ(::mkfifo((folder / "fifo" / "rank-0.err").c_str(), 0600), 0);
  for (const auto& [logs, said] :
       {std::pair("folder", "rank-1.err"),
        std::pair("link",
                  "/rank-1.out': it is a symbolic link to ../precious, expected a file; "
                  "remove it, or name another folder"),
        std::pair("fifo", "/rank-0.err': No such device or address")}) {
    const auto ended =
        run_lockstep({"-n", "2", "--log-dir", (folder / logs).string(), "echo", "started"});
    EXPECT_THAT(ended, ends(2, {said}));
    EXPECT_EQ(ended.out, "");
  }
  EXPECT_EQ(content(folder / "precious"), "data");
}

// Output that cannot be written is lost, but not in silence.

constexpr const char* full = "No space left on device";

TEST(Losses, OfStdoutAreToldAndTheJobGoesOn) {
  const TemporaryFolder folder;
  const auto done = folder / "done";
  const auto ended =
      run_in_shell(concat("run -n 2 sh -c 'seq 20000; echo >> ", done.string(), "' > /dev/full"));
  EXPECT_EQ(ended.code, 1);
  EXPECT_EQ(ended.err, concat("lockstep: output was lost: stdout: ", full, '\n'));
  EXPECT_EQ(content(done), "\n\n") << "not both ranks came to their end";
}

TEST(Losses, ShowInTheExitCodeOfAJobThatGoesWell) {
  EXPECT_THAT(run_in_shell("run -n 1 sh -c 'echo out; echo err >&2; exit 3' > /dev/full"),
              ends(3, {"ended with exit code 3", concat("output was lost: stdout: ", full)}));
  EXPECT_EQ(run_in_shell("run -n 2 sh -c 'echo err >&2' 2> /dev/full").code, 1);
  EXPECT_EQ(run_in_shell("run -n 2 sh -c 'echo out' 2> /dev/full").code, 0) << "none was lost";
}

/// Runs a job whose log files of these names cannot be written: /dev/full is mounted over them, in
/// a mount namespace that ends with the job. Nothing where this container may not mount.
std::optional<Ended> run_with_full(const std::filesystem::path& folder,
                                   const std::vector<std::string>& files,
                                   const std::string& arguments) {
  std::string script;
  for (const auto& file : files) {
    std::filesystem::create_directories((folder / file).parent_path());
    std::ofstream(folder / file).flush();
    script += concat("mount --bind /dev/full ", (folder / file).string(), " && ");
  }
  for (const char* unshare : {"-m", "-rm"}) {
    const auto begin = concat("unshare ", unshare, " /bin/sh -c '");
    if (std::system(concat(begin, script, "true' 2>/dev/null").c_str()) != 0) continue;
    return Launched({"/bin/sh", "-c",
                     concat("exec ", begin, script, "exec ", lockstep_program(), " run --log-dir ",
                            folder.string(), ' ', arguments, "'")})
        .wait();
  }
  return std::nullopt;
}

TEST(Losses, OfLogFilesAreToldAlsoOfAnEarlierAttempt) {
  const TemporaryFolder folder;
  const auto ended = run_with_full(folder.path(), {"rank-0.out", "rank-1.err"},
                                   "-n 2 sh -c \"echo out; echo err >&2\"");
  if (!ended) GTEST_SKIP() << "this container may not mount";
  EXPECT_THAT(*ended,
              ends(1, {concat("lockstep: output was lost: ", (folder / "rank-0.out").string(), ", ",
                              (folder / "rank-1.err").string(), ": ", full, '\n')}));
  EXPECT_THAT(ended->out, HasSubstr("[1] out\n"));
  EXPECT_EQ(content(folder / "rank-1.out"), "out\n");
  const auto again = run_with_full(folder.path(), {"attempt-0/rank-0.out"},
                                   "-n 1 --max-restarts 1 --restart-delay 0 sh -c "
                                   "\"echo out; [ \\$LOCKSTEP_RESTART_COUNT = 1 ]\"");
  EXPECT_THAT(again.value(), ends(1, {"restart 1 of 1", "attempt-0/rank-0.out: "}));
}

TEST(Losses, OfAReaderThatHasGoneEndTheJobAndAreTold) {
  Launched job(
      run_command({"-n", "2", "--max-restarts", "3", "sh", "-c", "while :; do echo on; done"}));
  job.await_output("on\n");
  job.close_output();
  const auto ended = job.wait_for_all();
  EXPECT_EQ(ended.code, 128 + SIGPIPE);
  EXPECT_EQ(ended.err, "lockstep: the reader of its output has closed it: stdout: Broken pipe\n");
}

TEST(Losses, OfWhatTheLauncherItselfShowsAreTold) {
  for (const char* command : {"run -n 2 --dry-run true", "doctor", "--help"}) {
    const auto ended = run_in_shell(concat(command, " > /dev/full"));
    EXPECT_EQ(ended.code, 1) << command;
    EXPECT_EQ(ended.err, concat("lockstep: output was lost: stdout: ", full, '\n')) << command;
  }
}

}  // namespace
}  // namespace lockstep::testing
