#include <algorithm>
#include <thread>

#include "tests/launch/job_on_nodes.h"
#include "tests/launch/simulated_hosts.h"

// Restarts of jobs on several hosts, also after the loss of a host: --spare and --min-hosts.

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
  EXPECT_THAT(
      wait(),
      Each(ends(0, {"restart 1 of 2: rank 2 of 3 failed first: it ended with exit code 3",
                    "restart 2 of 2: rank 0 of 3 failed first: it ended with exit code 4"})));
  for (const std::string attempt : {"0", "1", "2"}) {
    const auto line_of = [&](const std::string& rank) {
      return content(folder.path() / ("attempt-" + attempt) / ("rank-" + rank + ".out"));
    };
    EXPECT_THAT(line_of("0"), HasSubstr("attempt " + attempt));
    for (const char* rank : {"1", "2"}) EXPECT_EQ(line_of(rank), line_of("0"));
  }
}

TEST_F(Nodes, TakeTheLauncherThatReplacesALostOne) {
  const auto words = joined(
      restarts(1), {shell("echo pid $$; [ $LOCKSTEP_RESTART_COUNT = 1 ] || exec sleep 100")});
  start(0, 1, words);
  start(1, 1, words);
  launcher(0).await_output("pid ");
  launcher(1).await_output("pid ");
  launcher(1).send(SIGKILL);
  start(1, 1, words);
  const auto ended = wait();
  EXPECT_THAT(ended[0],
              ends(0, {"restart 1 of 1: node 1 of 2 failed first: its launcher has ended"}));
  EXPECT_EQ(ended[2].code, 0) << ended[2].err;
}

TEST_F(Nodes, EndAtASignalBeforeARestart) {
  const Words words{"--max-restarts", "1", "--restart-delay", "50", "sh", "-c", "exit 3"};
  start(0, 1, words);
  start(1, 1, words);
  EXPECT_TRUE(launcher(0).await_error("restart 1 of 1"));
  EXPECT_TRUE(launcher(1).await_error("restart 1 of 1"));
  launcher(1).send(SIGINT);
  expect_all(3, "not started again, as SIGINT asked it to end");
}

const auto restart_once = restarts(1);
/// Ranks that print their place and end in the second attempt.
const auto show_place = shell(
    "echo pid $$; echo at $LOCKSTEP_RANK/$LOCKSTEP_WORLD_SIZE on $(hostname).; "
    "[ $LOCKSTEP_RESTART_COUNT = 1 ] || exec sleep 100");

class LostHosts : public HostsBySsh {
 protected:
  /// The options, restart_once, and show_place on the first three hosts.
  Words job(const Words& options) const {
    return hosts_.command(joined({"--hosts", hosts_.list()}, {options, restart_once, show_place}));
  }
  std::string place(int rank, int size, int host) const {
    return concat("at ", rank, '/', size, " on ", hosts_.name(host), ".\n");
  }
  const Launched::Variables variables_{{"LOCKSTEP_HEARTBEAT", "3"}};
};

TEST_F(LostHosts, AreReplacedBySpares) {
  for (const bool cut : {true, false}) {
    Launched launcher(job({"--spare", hosts_.name(3) + ":1"}), variables_);
    launcher.await_output("on lockstep", 4);
    const auto started = hosts_.started();
    if (cut) {
      hosts_.cut(1);
    } else {
      for (const auto pid :
           numbers_after(launcher.output(), concat("[1 ", hosts_.name(1), "] pid")))
        kill(pid, SIGKILL);
      kill(numbers_after(started, hosts_.name(1)).at(0), SIGKILL);
    }
    const auto ended = launcher.wait();
    EXPECT_THAT(ended,
                ends(0, {"restart 1 of 1: ", concat("lockstep: host ", hosts_.name(3),
                                                    " replaces host ", hosts_.name(1), ": ")}));
    EXPECT_THAT(ended, prints({place(0, 3, 0), place(1, 3, 3), place(2, 3, 2)}));
    EXPECT_TRUE(await_all_ended(std::chrono::seconds(20)));
    hosts_.join(1);
  }
}

TEST_F(LostHosts, AreThoseWhoseSshEnds) {
  const auto relay = (folder_ / "relay").string();
  // Copies its stdin to the launcher by a process, whose end is the end of the launcher's stdin.
  write_program(relay, concat("#!/bin/sh\nfifo=", relay, ".$1; mkfifo $fifo; exec 3<&0\n",
                              "cat <&3 >$fifo & echo $1 $! >>", relay, ".started\n", hosts_.ssh(),
                              " \"$@\" <$fifo; code=$?; kill $!; exit $code\n"));
  auto words = job({"--spare", hosts_.name(3) + ":1"});
  std::ranges::replace(words, hosts_.ssh(), relay);
  Launched launcher(words, variables_);
  launcher.await_output("on lockstep", 4);
  kill(numbers_after(content(relay + ".started"), hosts_.name(1)).at(0), SIGKILL);
  const auto ended = launcher.wait();
  EXPECT_THAT(ended, ends(0, {"node 1 of 3 failed first: its launcher has ended"}, {"SIGTERM"}));
  EXPECT_THAT(ended.out, HasSubstr(place(1, 3, 3)));
  EXPECT_TRUE(await_all_ended(std::chrono::seconds(20)));
}

TEST_F(LostHosts, MayBeLostWhileTheOthersJoinAgain) {
  const auto slow = (folder_ / "slow").string();
  write_program(slow, concat("#!/bin/sh\nwhile [ $1 = ", hosts_.name(3), " -a ! -e ", slow,
                             ".go ]; do sleep 0.1; done; exec ", hosts_.ssh(), " \"$@\"\n"));
  auto words =
      hosts_.command({"--hosts", hosts_.list(), "--spare", hosts_.name(3) + ":1", "--min-hosts",
                      "2", "--max-restarts", "2", "--restart-delay", "0", "sh", "-c",
                      "echo at $LOCKSTEP_RANK/$LOCKSTEP_WORLD_SIZE on $(hostname).; "
                      "[ $LOCKSTEP_RESTART_COUNT = 2 ] || exec sleep 100"});
  std::ranges::replace(words, hosts_.ssh(), slow);
  Launched launcher(words, variables_);
  launcher.await_output("on lockstep", 4);
  hosts_.cut(1);
  EXPECT_TRUE(launcher.await_error("replaces host"));
  std::this_thread::sleep_for(std::chrono::seconds(4));  // host 2 has joined again
  hosts_.cut(2);
  std::ofstream(slow + ".go").put('x');
  const auto ended = launcher.wait();
  EXPECT_THAT(ended, ends(0, {"restart 2 of 2: node 2 of 3 failed first",
                              "lockstep: starts without node 2 of 3 (--min-hosts)"}));
  EXPECT_THAT(ended, prints({place(0, 2, 0), place(1, 2, 3)}));
  EXPECT_TRUE(await_all_ended(std::chrono::seconds(20)));
}

TEST_F(LostHosts, EndTheJobIfTooFewAreLeft) {
  Launched launcher(job({"--min-hosts", "3"}), variables_);
  launcher.await_output("on lockstep", 4);
  hosts_.cut(2);
  EXPECT_THAT(launcher.wait(), ends(1, {concat("run: host ", hosts_.name(2), ": it was lost")}));
  EXPECT_TRUE(await_all_ended(std::chrono::seconds(20)));
}

TEST_F(LostHosts, AreReplacedBeforeTheFirstStart) {
  const auto ended = run({"--hosts", concat(SimulatedHosts::address(0), ":1,nowhere:1"), "--spare",
                          concat("neither:1,", hosts_.name(3), ":2"), "sh", "-c",
                          "echo at $LOCKSTEP_RANK on $(hostname)."});
  EXPECT_THAT(ended, ends(0, {"lockstep: host neither replaces host nowhere: ssh or the "
                              "launcher there ended with exit code"}));
  const auto spare = concat(" on ", hosts_.name(3));
  EXPECT_THAT(ended, prints({"at 1" + spare, "at 2" + spare}));
}

const Words two_of_three = joined({"--min-hosts", "2"}, {restart_once, show_place});

TEST_F(Nodes, GoOnWithoutALostOne) {
  count_ = 3;
  variables_["LOCKSTEP_HEARTBEAT"] = "3";
  start_all(two_of_three);
  launcher(1).send(SIGKILL);
  const auto ended = wait();
  for (const std::size_t node : {0U, 2U}) {
    EXPECT_THAT(ended[node], ends(0, {"lockstep: starts without node 1 of 3 (--min-hosts)"}));
  }
  EXPECT_THAT(ended[0].out, AllOf(HasSubstr("\nat 0/3 "), HasSubstr("[1] at 1/3 ")));
  EXPECT_THAT(ended[2].out, HasSubstr("[2] at 2/3 "));
}

TEST_F(Nodes, WaitForOneThatIsStartedAgain) {
  count_ = 3;
  start_all(two_of_three);
  launcher(1).send(SIGKILL);
  EXPECT_TRUE(launcher(0).await_error("restart 1 of 1"));
  start(1, 1, two_of_three);
  const auto ended = wait();
  EXPECT_THAT(ended[0], ends(0, {}, {"starts without"}));
  EXPECT_THAT(ended[2].out, HasSubstr("[3] at 3/4 "));
  EXPECT_THAT(ended[3].out, HasSubstr("[2] at 2/4 "));
}

TEST_F(Nodes, TakeTheirPlaceAtTheNextRestart) {
  count_ = 3;
  variables_["LOCKSTEP_HEARTBEAT"] = "12";
  const auto words =
      joined(restarts(2), {{"--min-hosts", "1", "--timeout", "60"},
                           shell("echo pid $$; echo at $LOCKSTEP_RANK/$LOCKSTEP_WORLD_SIZE.; "
                                 "[ $LOCKSTEP_RESTART_COUNT = 2 ] || exec sleep 100")});
  start_all(words);
  launcher(1).send(SIGKILL);
  launcher(2).send(SIGKILL);
  launcher(0).await_output("at 0/2.\n");  // alone
  launcher(0).await_output("[1] at 1/2.\n");
  start(1, 1, words);
  start(2, 1, words);
  kill(numbers_after(launcher(0).output(), "\n[1] pid").back(), SIGKILL);
  const auto ended = wait();
  EXPECT_THAT(ended[0], prints({"at 0/4.\n"}));
  EXPECT_THAT(ended[4].out, HasSubstr("[3] at 3/4.\n")) << ended[0].err << ended[3].err;
}

}  // namespace
}  // namespace lockstep::testing
