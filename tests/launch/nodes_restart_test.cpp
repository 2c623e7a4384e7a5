#include <signal.h>

#include <string>
#include <vector>

#include "tests/launch/job_on_nodes.h"
#include "tests/launch/simulated_hosts.h"
#include "tests/matchers.h"
#include "tests/temporary_folder.h"

namespace lockstep::testing {
namespace {

TEST_F(Nodes, StartAgainTogether) {
  TemporaryFolder folder;
  const auto words =
      joined(restarts(2), {{"--log-dir", folder.path()},
                           shell("echo attempt $LOCKSTEP_RESTART_COUNT $LOCKSTEP_TOKEN; "
                                 "[ $LOCKSTEP_RANK$LOCKSTEP_RESTART_COUNT != 20 ] || exit 3; "
                                 "[ $LOCKSTEP_RANK$LOCKSTEP_RESTART_COUNT != 01 ] || exit 4; "
                                 "[ $LOCKSTEP_RESTART_COUNT = 2 ] || exec sleep 100")});
  start(0, 2, words);
  start(1, 1, words);
  for (const auto& one : wait()) {
    EXPECT_EQ(one.code, 0) << one.err;
    EXPECT_THAT(
        one.err,
        AllOf(HasSubstr("restart 1 of 2: rank 2 of 3 failed first: it ended with exit code 3"),
              HasSubstr("restart 2 of 2: rank 0 of 3 failed first: it ended with exit code 4")));
  }
  std::vector<std::string> tokens;
  for (const std::string attempt : {"0", "1", "2"}) {
    for (const std::string rank : {"0", "1", "2"}) {
      const auto line =
          contents(folder.path() / ("attempt-" + attempt) / ("rank-" + rank + ".out"));
      EXPECT_THAT(line, HasSubstr("attempt " + attempt));
      if (rank != "0") {
        EXPECT_EQ(line, tokens.back());
      }
      tokens.push_back(line);
    }
  }
}

TEST_F(Nodes, TakeTheLauncherThatReplacesALostOne) {
  const auto words = joined(
      restarts(1), {shell("echo pid $$; [ $LOCKSTEP_RESTART_COUNT = 1 ] || exec sleep 100")});
  start(0, 1, words);
  start(1, 1, words);
  launcher(0).await_output("pid ");
  launcher(1).await_output("pid ");
  kill(launcher(1).pid(), SIGKILL);
  start(1, 1, words);
  const auto ended = wait();
  EXPECT_EQ(ended[0].code, 0) << ended[0].err;
  EXPECT_THAT(ended[0].err,
              HasSubstr("restart 1 of 1: node 1 of 2 failed first: its launcher has ended"));
  EXPECT_EQ(ended[2].code, 0) << ended[2].err;
}

TEST_F(Nodes, EndAtASignalBeforeARestart) {
  const Arguments words{"--max-restarts", "1", "--restart-delay", "50", "sh", "-c", "exit 3"};
  start(0, 1, words);
  start(1, 1, words);
  EXPECT_TRUE(launcher(0).await_error("restart 1 of 1"));
  EXPECT_TRUE(launcher(1).await_error("restart 1 of 1"));
  kill(launcher(1).pid(), SIGINT);
  expect_all(3, "not started again, as SIGINT asked it to end");
}

/// Launchers on simulated hosts.
class NodesOnHosts : public Nodes {
 protected:
  void SetUp() override {
    count_ = 3;
    master_ = SimulatedHosts::address(0);
    if (!hosts_.made()) GTEST_SKIP() << "no network namespace can be made here (not root?)";
  }
  void start_hosts(const Arguments& words) {
    for (int node = 0; node < count_; ++node) start(node, 1, words, hosts_.enter(node));
  }

  SimulatedHosts hosts_{3};
};

TEST_F(NodesOnHosts, AreOneWorldOfRanks) {
  const Arguments bench{lockstep_program(), "bench", "all_reduce", "--backend", "tcp",
                        "--check",          "--max", "64KiB",      "--factor",  "64",
                        "--repeats",        "3"};
  start_hosts(bench);
  const auto ended = wait();
  for (const auto& one : ended) EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_THAT(ended[0].out,
              AllOf(HasSubstr("3 ranks as processes"), HasSubstr("wrong elements: 0")));
}

TEST_F(NodesOnHosts, NameTheRankThatTheRanksLost) {
  variables_["LOCKSTEP_BIN"] = lockstep_program();
  start_hosts({"sh", "-c",
               "echo pid $$; exec $LOCKSTEP_BIN bench all_reduce --repeats 1000000 --max 1KiB"});
  for (int node = 0; node < count_; ++node) launcher(node).await_output("pid ");
  launcher(0).await_output("(B)");  // all have joined
  kill(numbers_after(launcher(1).output(), "pid").at(0), SIGKILL);
  expect_all(128 + SIGKILL,
             concat("rank 1 of 3 failed first: it was ended by SIGKILL (host ", hosts_.name(1)));
}

}  // namespace
}  // namespace lockstep::testing
