#include "launch/remote_nodes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "core/system/topology.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "tests/launch/job_on_nodes.h"
#include "tests/launch/simulated_hosts.h"
#include "tests/temporary_folder.h"

namespace lockstep::testing {
namespace {

using launch::parse_hosts;
using lockstep::detail::concat;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Hosts, AreReadFromAListOrAFile) {
  const auto own = lockstep::detail::host_name();
  for (const auto& text :
       {concat(own, ":2,b:3"), concat("# hosts\n", own, " slots=2\n\nb:3 # last\n"),
        std::string("localhost:2,b slots=3"), std::string("127.0.0.1:2\nb:3")}) {
    const auto hosts = parse_hosts(text, "--hosts");
    ASSERT_EQ(hosts.size(), 2U) << text;
    EXPECT_EQ(hosts[0].ranks, 2);
    EXPECT_EQ(hosts[1].name, "b");
    EXPECT_EQ(hosts[1].ranks, 3);
  }
}

TEST(Hosts, AreRefusedWithTheEntry) {
  for (const std::string entry : {"b", "b:0", "b:x", "b slots=", "b 2", "b:1 more"}) {
    try {
      parse_hosts(concat("localhost:1,", entry), "--hosts");
      FAIL() << entry;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr(concat("--hosts: got '", entry, "'")));
    }
  }
  EXPECT_THROW(parse_hosts("", "--hosts"), InvalidArgument);
  EXPECT_THROW(parse_hosts("elsewhere.invalid:1,localhost:1", "--hosts"), InvalidArgument);
}

/// `lockstep run --hosts` on the first of three simulated hosts, with a command in place of ssh.
class HostsBySsh : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!hosts_.made()) GTEST_SKIP() << "no network namespace can be made here (not root?)";
    std::ofstream(ssh()) << "#!/bin/sh\nhost=$1; shift; cd /; echo $host $$ >>" << ssh()
                         << ".started\n"
                         << "exec ip netns exec $host unshare --uts sh -c \"hostname $host; $*\"\n";
    std::filesystem::permissions(ssh(), std::filesystem::perms::owner_all);
  }
  std::string ssh() const { return (folder_ / "ssh").string(); }
  std::string list() const {
    return concat(SimulatedHosts::address(0), ":1,", hosts_.name(1), ":2,", hosts_.name(2), ":1");
  }
  Arguments command(const Arguments& words) const {
    auto all = hosts_.enter(0);
    all.insert(all.end(), {lockstep_program(), "run", "--ssh", ssh()});
    all.insert(all.end(), words.begin(), words.end());
    return all;
  }

  TemporaryFolder folder_;
  SimulatedHosts hosts_{3};
};

TEST_F(HostsBySsh, StartOneWorld) {
  const auto script =
      "echo $LOCKSTEP_RANK/$LOCKSTEP_WORLD_SIZE $(hostname) $PWD $OMP_MINE $FOO $BAR "
      "$LOCKSTEP_NODE_TOKEN.; cat";
  const auto ended =
      Launched(command({"--hosts", list(), "-x", "FOO", "--export=BAR=a b", "sh", "-c", script}),
               {{"OMP_MINE", "sent"}, {"FOO", "named"}, {"OTHER", "not sent"}})
          .wait();
  EXPECT_EQ(ended.code, 0) << ended.err;
  const auto folder = std::filesystem::current_path().string();
  for (const auto& [rank, host] : {std::pair(1, 1), std::pair(2, 1), std::pair(3, 2)}) {
    EXPECT_THAT(ended.out, HasSubstr(concat('[', rank, "] ", rank, "/4 ", hosts_.name(host), ' ',
                                            folder, " sent named a b .\n")));
  }
  EXPECT_THAT(ended.out, HasSubstr(concat("0/4 ", hosts_.name(0))));
  EXPECT_TRUE(await_all_ended(std::chrono::seconds(10)));
}

TEST_F(HostsBySsh, ReportTheFirstCauseOnce) {
  const auto path = (folder_ / "hosts").string();
  std::ofstream(path) << SimulatedHosts::address(0) << " slots=1\n"
                      << hosts_.name(1) << " slots=1\n";
  const auto ended = Launched(command({"--hostfile", path, "--grace", "1", "sh", "-c",
                                       "[ $LOCKSTEP_RANK = 1 ] && exit 3; exec sleep 100"}))
                         .wait();
  EXPECT_EQ(ended.code, 3);
  const auto cause =
      concat("rank 1 of 2 failed first: it ended with exit code 3 (host ", hosts_.name(1));
  const auto at = ended.err.find(cause);
  ASSERT_NE(at, std::string::npos) << ended.err;
  EXPECT_EQ(ended.err.find(cause, at + 1), std::string::npos) << ended.err;
}

TEST_F(HostsBySsh, NameAHostThatCannotBeReached) {
  const auto ended =
      Launched(command({"--hosts", concat(SimulatedHosts::address(0), ":1,nowhere:1"), "true"}))
          .wait();
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err,
              HasSubstr("run: host nowhere: ssh or the launcher there ended with exit code"));
}

TEST_F(HostsBySsh, EndWithTheFirstLauncherAndWithSsh) {
  for (const bool first : {true, false}) {
    std::filesystem::remove(ssh() + ".started");
    Launched launcher(command({"--hosts", list(), "sh", "-c", "echo pid $$; exec sleep 100"}));
    launcher.await_output("pid ", 4);
    const auto started = contents(ssh() + ".started");
    // The command in place of ssh has become the launcher of its host.
    kill(first ? launcher.pid() : numbers_after(started, hosts_.name(1)).at(0), SIGKILL);
    const auto ended = launcher.wait();
    if (!first) {
      EXPECT_EQ(ended.code, 1);
      EXPECT_THAT(ended.err, HasSubstr("node 1 of 3 failed first: its launcher has ended"));
    }
    EXPECT_TRUE(await_all_ended(std::chrono::seconds(20)));
  }
}

TEST_F(HostsBySsh, EndWithTheirStdin) {
  TemporaryFolder folder;
  const auto pipe = (folder / "pipe").string();
  const std::string words =
      concat("/", '\0', '\0', "run", '\0', "--end-with-stdin", '\0', "--standalone", '\0', "-n",
             '\0', "1", '\0', "sh", '\0', "-c", '\0', "echo pid; exec sleep 100", '\0');
  std::ofstream(pipe) << words.size() << '\n' << words;
  Launched launcher({"/bin/sh", "-c",
                     "{ cat \"$1\"; while [ ! -e \"$1.end\" ]; do sleep 0.02; done; } | "
                     "\"$0\" run --join-by-stdin",
                     lockstep_program(), pipe});
  launcher.await_output("pid");
  std::ofstream(pipe + ".end").put('x');
  const auto ended = launcher.wait();
  EXPECT_EQ(ended.code, 128 + SIGTERM) << ended.err;
}

TEST_F(HostsBySsh, AreRefusedWithOtherNumbersOfRanks) {
  const auto ended = Launched(command({"--hosts", list(), "-n", "2", "true"})).wait();
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err, HasSubstr("got --hosts or --hostfile with -n"));
}

}  // namespace
}  // namespace lockstep::testing
