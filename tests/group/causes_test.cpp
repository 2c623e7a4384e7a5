// Tests of the cause that is named when a rank ends by an error, and of processes that end with a
// launcher.
#include <signal.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "core/system/process.h"
#include "tests/group/launchers.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

const Launched::Variables long_timeout{{"LOCKSTEP_TIMEOUT", "60"}};

Ended run_init_program(const std::string& behaviour, const std::string& argument = {}) {
  return run_lockstep({"-n", "2", init_program, behaviour, argument}, long_timeout);
}

TEST(Causes, AnErrorThatNobodyCatchesIsTheReasonAndInTheFlightRecord) {
  const TemporaryFolder folder;
  const auto log = folder.path().string();
  const auto ended =
      run_lockstep({"-n", "2", "--log-dir", log, init_program, "throw"}, long_timeout);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("rank 1 of 2 failed first: it was ended by SIGABRT"),
                               HasSubstr("Reason: rank 1: no such data")));
  EXPECT_THAT(ended.out, HasSubstr("all_reduce #1 (host) rank 0 of 2: rank 1: no such data"));
  EXPECT_THAT(Launched({lockstep_program(), "explain", log}).wait().out,
              ContainsRegex("first cause: rank 1 \\(pid [0-9]+\\) crashed: SIGABRT: no such data"));
}

TEST(Causes, ABacktraceOfLibTorchIsPrintedOnceByTheRankThatHasIt) {
  for (const char* behaviour : {"libtorch", "libtorch-main"}) {
    const auto ended = run_init_program(behaviour);
    EXPECT_THAT(ended.err, AllOf(HasSubstr("rank 1 of 2 failed first"),
                                 HasSubstr("[1] Exception raised from "),
                                 HasSubstr("shape '[3]' is invalid for input of size 2")));
    const auto all = ended.out + ended.err;
    for (const char* part : {"Exception raised from ", "frame #0: "}) {
      EXPECT_EQ(all.find(part), all.rfind(part)) << all;
    }
  }
}

TEST(Causes, AnErrorThatIsCaughtAfterTheGroupHasGoneIsTheReason) {
  const auto ended = run_init_program("raise");
  EXPECT_THAT(ended, ends(1, {"rank 1 of 2 failed first: it ended with exit code 1",
                              "Reason: rank 1: no such file"}));
  EXPECT_THAT(ended.out, HasSubstr("all_reduce #1 (host) rank 0 of 2: rank 1: no such file"));
}

TEST(Causes, AGradientThatIsNotFiniteIsTheFaultOfTheRankThatHasIt) {
  for (const auto& [behaviour, strategy] :
       {std::pair("nan", "fp32"), {"nan", "topk:0.5"}, {"nan-printed", "fp32"}}) {
    EXPECT_THAT(run_init_program(behaviour, strategy),
                ends(1, {"rank 1 of 2 failed first", "on rank 1 has NaN or Inf"}));
  }
}

TEST(Causes, AnErrorOfARankThatCannotJoinIsTheReason) {
  const auto ended = run_lockstep(
      {"-n", "2", "sh", "-c", "[ $LOCKSTEP_RANK = 0 ] || export LOCKSTEP_BACKEND=mpi; exec \"$0\"",
       init_program},
      long_timeout);
  EXPECT_THAT(ended.out,
              HasSubstr("init (host) rank 0 of 2: rank 1: init: started by lockstep run, "
                        "which does not start MPI processes"));
}

TEST(LauncherThatIsStopped, LeavesItToTheRanksToMissOneAnother) {
  Launched launcher(run_command({"-n", "2", init_program, "for-ever"}), long_timeout);
  launcher.await_output("pid ", 2);
  const auto pids = numbers_after("\n" + launcher.output(), "[1] pid");
  ASSERT_EQ(pids.size(), 1U);
  ::kill(launcher.pid(), SIGSTOP);
  ::kill(pids.front(), SIGKILL);
  const auto others = numbers_after("\n" + launcher.output(), "\npid");
  ASSERT_EQ(others.size(), 1U);
  while (lockstep::detail::read_process(others.front()).state != 'Z') ::usleep(1000);
  ::kill(launcher.pid(), SIGCONT);
  const auto ended = launcher.wait();
  EXPECT_THAT(ended.out, HasSubstr("rank 1 left the world (its process ended) before"));
  EXPECT_THAT(ended.err, HasSubstr("rank 1 of 2 failed first: it was ended by SIGKILL"));
  EXPECT_LT(ended.seconds, 30s) << "the timeout is 60 s";
}

// Worlds of PyTorch's own launcher, and what it says when a rank ends with an error.

class Torchrun : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_torchrun()) GTEST_SKIP() << LOCKSTEP_TORCH_PYTHON << " has no torchrun";
  }

  /// The command of two ranks that restart at most so often.
  std::vector<std::string> command(const std::string& behaviour, int restarts = 0) const {
    return {
        "sh", "-c",
        concat("exec ", quoted(LOCKSTEP_TORCH_PYTHON), " -m torch.distributed.run --standalone ",
               "--no-python --nproc-per-node 2 --max-restarts ", restarts, " --log-dir ",
               quoted(folder_.path().string()), ' ', quoted(init_program), ' ', behaviour)};
  }

  TemporaryFolder folder_;
};

TEST_F(Torchrun, NamesTheRootCause) {
  const auto ended = Launched(command("throw"), long_timeout).wait();
  EXPECT_NE(ended.code, 0);
  const auto at = std::min(ended.err.find("Root Cause"), ended.err.size());
  EXPECT_THAT(ended.err.substr(at),
              AllOf(HasSubstr("rank      : 1 (local_rank: 1)"),
                    HasSubstr("traceback : std::runtime_error: no such data")))
      << ended.err;
}

TEST_F(Torchrun, AttemptsAreKeptApart) {
  EXPECT_THAT(Launched(command("throw-once", 1), long_timeout).wait(),
              prints({"rank 0 of 2 over host: 3\n", "rank 1 of 2 over host: 3\n"}));
}

/// Its launcher is killed with no chance to clean up, once all of its ranks are in the world.
TEST_F(Torchrun, ThatIsKilledEndsItsRanks) {
  Launched launcher(command("for-ever"));
  launcher.await_output("pid ", 2);
  ::kill(launcher.pid(), SIGKILL);
  EXPECT_TRUE(await_all_ended(20s));
}

/// A program with that error file that init() refuses, which the program catches.
Ended refused(const std::filesystem::path& error_file) {
  const auto ended = Launched({init_program}, {{"TORCHELASTIC_ERROR_FILE", error_file.string()},
                                               {"LOCKSTEP_LOG", "warn"},
                                               {"RANK", "2"},
                                               {"WORLD_SIZE", "2"}})
                         .wait();
  EXPECT_EQ(ended.code, 1);
  return ended;
}

TEST(ErrorFile, IsWrittenAsTorchrunReadsItAndEndsNothingElse) {
  const TemporaryFolder folder;
  const auto file = folder / "error.json";
  refused(file);
  const auto content = nlohmann::json::parse(std::ifstream(file))["message"];
  EXPECT_THAT(content["message"].get<std::string>(),
              HasSubstr("lockstep::InvalidArgument: init: contradictory environment: RANK=2"));
  EXPECT_GT(std::stoll(content["extraInfo"]["timestamp"].get<std::string>()), 1'700'000'000);
  EXPECT_THAT(refused("/nowhere/error.json").out, HasSubstr("contradictory environment"));
}

TEST(ErrorFile, FollowsNoLink) {
  const TemporaryFolder folder;
  std::ofstream(folder / "precious") << "data";
  std::filesystem::create_symlink("precious", folder / "error.json.part");
  EXPECT_THAT(refused(folder / "error.json").err,
              HasSubstr("/error.json.part: it is a symbolic link to precious"));
  EXPECT_EQ(std::filesystem::file_size(folder / "precious"), 4U);
}

}  // namespace
}  // namespace lockstep::testing
