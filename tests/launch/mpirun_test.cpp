#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/launch/launched.h"
#include "tests/temporary_folder.h"

// `lockstep mpirun`, with a script in mpirun's place.

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class MpirunCommand : public ::testing::Test {
 protected:
  /// A job whose mpirun is this script, of which a rank is what it starts by `rank COMMAND`.
  Launched start(const std::string& script, std::vector<std::string> arguments) const {
    const auto file = folder_ / "mpirun";
    std::ofstream(file) << "#!/bin/sh\nrank() { OMPI_COMM_WORLD_RANK=$1 sh -c \"$2\" & }\n"
                        << script << '\n';
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
    arguments.insert(arguments.begin(), {lockstep_program(), "mpirun"});
    return Launched(arguments, {{"PATH", folder_.path().string() + ":" + std::getenv("PATH")}});
  }

  TemporaryFolder folder_;
};

TEST_F(MpirunCommand, PassesArgumentsOutputAndExitCode) {
  auto job = start("printf '<%s>' \"$@\"; echo err >&2; rank 0 'exit 1'; wait; exit 7",
                   {"-np", "2", "--mca", "x y", "", "./program", "--linger", "3"});
  const auto ended = job.wait();
  EXPECT_EQ(ended.code, 7);
  EXPECT_EQ(ended.out, "<-np><2><--mca><x y><><./program><--linger><3>");
  EXPECT_EQ(ended.err, "err\n");
  EXPECT_EQ(start("kill -SEGV $$", {"-np", "1", "x"}).wait().code, 128 + SIGSEGV);
  EXPECT_FALSE(anything_left());
}

TEST_F(MpirunCommand, EndsAnMpirunThatDoesNotReturn) {
  // One that ends at SIGTERM, and one that does not.
  for (const char* trap : {"", "trap '' TERM"}) {
    auto job = start(std::string(trap) +
                         "\nrank 0 'echo rank 0; sleep 1'; rank 1 'exit 1'; "
                         "wait; while :; do sleep 1; done",
                     {"--linger", "0.5", "-np", "2", "x"});
    const auto ended = job.wait();
    EXPECT_EQ(ended.code, 1);
    EXPECT_EQ(ended.out, "rank 0\n");
    EXPECT_THAT(ended.err, ContainsRegex("lockstep: mpirun \\(pid [0-9]+\\) still runs 0.5 s after "
                                         "the last rank of this host ended, and is ended now"));
    EXPECT_FALSE(anything_left());
  }
}

TEST_F(MpirunCommand, WaitsForRanks) {
  // Longer than --linger, and nothing is ended before there was a rank.
  auto job = start("sleep 1; rank 0 'sleep 2; echo done'; wait", {"--linger", "0.1", "-np", "1"});
  const auto ended = job.wait();
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.out, "done\n");
  EXPECT_EQ(ended.err, "");
}

TEST_F(MpirunCommand, PassesSignalsOn) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    auto job = start(
        "trap 'echo asked; exit 5' INT TERM HUP; rank 0 'exec sleep 1000'; "
        "echo started; while :; do sleep 0.1; done",
        {"-np", "1", "x"});
    job.await_output("started");
    kill(job.pid(), signal);
    const auto ended = job.wait();
    EXPECT_EQ(ended.code, 5);
    EXPECT_THAT(ended.out, HasSubstr("asked"));
    EXPECT_FALSE(anything_left());
  }
}

TEST_F(MpirunCommand, PassesOnTheSignalsThatMpirunForwards) {
  auto job = start(
      "trap 'echo one' USR1; trap 'echo two; exit 0' USR2; rank 0 'exec sleep 1000'; "
      "echo started; while :; do sleep 0.1; done",
      {"-np", "1", "x"});
  job.await_output("started");
  kill(job.pid(), SIGUSR1);
  job.await_output("one");
  kill(job.pid(), SIGUSR2);
  const auto ended = job.wait();
  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(ended.out, HasSubstr("two"));
  EXPECT_FALSE(anything_left());
}

TEST_F(MpirunCommand, ASecondSignalKills) {
  auto job = start("trap 'echo asked' INT; trap '' TERM; echo started; while :; do sleep 0.1; done",
                   {"-np", "1", "x"});
  job.await_output("started");
  kill(job.pid(), SIGINT);
  job.await_output("asked");
  kill(job.pid(), SIGINT);
  EXPECT_EQ(job.wait().code, 128 + SIGKILL);
  EXPECT_FALSE(anything_left());
}

TEST_F(MpirunCommand, LowersKeepAliveUnlessItIsSet) {
  const auto shown = [&] { return start("env | grep OMPI_MCA_oob", {"-np", "1", "x"}).wait().out; };
  // OpenMPI gives a host up after 5 intervals without an answer, later than Lockstep.
  EXPECT_THAT(shown(), AllOf(HasSubstr("OMPI_MCA_oob_tcp_keepalive_time=10\n"),
                             HasSubstr("OMPI_MCA_oob_tcp_keepalive_intvl=7\n"),
                             HasSubstr("OMPI_MCA_oob_tcp_keepalive_probes=5\n")));
  ::setenv("LOCKSTEP_HEARTBEAT", "60", 1);
  EXPECT_THAT(shown(), HasSubstr("OMPI_MCA_oob_tcp_keepalive_intvl=25\n"));
  ::unsetenv("LOCKSTEP_HEARTBEAT");
  ::setenv("OMPI_MCA_oob_tcp_keepalive_time", "300", 1);
  EXPECT_THAT(shown(), HasSubstr("OMPI_MCA_oob_tcp_keepalive_time=300\n"));
  ::unsetenv("OMPI_MCA_oob_tcp_keepalive_time");
}

TEST_F(MpirunCommand, BadInputIsOneClearError) {
  const auto refused = [&](std::vector<std::string> arguments, const std::string& path = {}) {
    arguments.insert(arguments.begin(), {lockstep_program(), "mpirun"});
    const auto ended = Launched(arguments, path.empty() ? Launched::Variables{}
                                                        : Launched::Variables{{"PATH", path}})
                           .wait();
    EXPECT_EQ(ended.code, 2);
    return ended.err;
  };
  EXPECT_THAT(refused({}), HasSubstr("mpirun: no arguments given; as in: lockstep mpirun -np 4"));
  EXPECT_THAT(refused({"--linger", "-1", "-np", "2"}), HasSubstr("linger: got -1 s"));
  EXPECT_THAT(refused({"-np", "2", "x"}, "/nonexistent"),
              HasSubstr("cannot run 'mpirun': no such program in PATH"));
}

}  // namespace
}  // namespace lockstep::testing
