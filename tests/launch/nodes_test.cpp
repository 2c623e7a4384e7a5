#include "launch/job/nodes.h"

#include <unistd.h>

#include <thread>
#include <tuple>

#include "tests/comm/control/relay.h"
#include "tests/launch/job_on_nodes.h"

namespace lockstep::testing {
namespace {

TEST_F(Nodes, NumberTheRanksOfAllHosts) {
  count_ = 3;
  const auto show = shell(
      "echo r=$LOCKSTEP_RANK/$LOCKSTEP_WORLD_SIZE l=$LOCKSTEP_LOCAL_RANK/$LOCKSTEP_LOCAL_SIZE "
      "$LOCKSTEP_MASTER $LOCKSTEP_TOKEN $LOCKSTEP_RUN_ID; "
      "[ -z \"$LOCKSTEP_LISTEN_FD\" ] || readlink /proc/self/fd/$LOCKSTEP_LISTEN_FD; cat");
  start(0, 2, show);
  start(1, 1, show);
  start(2, 3, show);
  const auto ended = wait();
  std::string world;  // what all ranks have in common
  for (const auto& [node, prefix, rank, local] :
       std::vector<std::tuple<std::size_t, std::string, std::string, std::string>>{
           {0, "", "0/6", "0/2"},
           {0, "[1] ", "1/6", "1/2"},
           {1, "[2] ", "2/6", "0/1"},
           {2, "[3] ", "3/6", "0/3"},
           {2, "[4] ", "4/6", "1/3"},
           {2, "[5] ", "5/6", "2/3"}}) {
    const auto begin = concat(prefix, "r=", rank, " l=", local, " 127.0.0.1:");
    const auto at = ended[node].out.find(begin);
    ASSERT_NE(at, std::string::npos) << begin << " in " << ended[node].out;
    const auto rest = first_line(ended[node].out.substr(at + begin.size()));
    if (world.empty()) world = rest;
    EXPECT_EQ(rest, world);
  }
  EXPECT_THAT(world, MatchesRegex("[0-9]+ [0-9a-f]{64} [0-9a-f]{16}"));
  EXPECT_THAT(ended[0].out, AllOf(HasSubstr("socket:["), Not(HasSubstr("[1] socket:["))));
  EXPECT_THAT(ended[1].out + ended[2].out, Not(HasSubstr("socket:[")));
  for (const auto& one : ended) EXPECT_EQ(one.code, 0) << one.err;
}

TEST_F(Nodes, LeaveTheSocketToRank0) {
  start(0, 1, shell("echo at $(readlink /proc/self/fd/$LOCKSTEP_LISTEN_FD).; exec sleep 100"));
  start(1, 1, sleep_on);
  launcher(0).await_output(".\n");
  const auto& out = launcher(0).output();
  const auto socket = out.substr(3, out.rfind('.') - 3);
  EXPECT_THAT(socket, HasSubstr("socket:["));
  const auto holds = [&] {
    const auto folder = concat("/proc/", launcher(0).pid(), "/fd");
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      std::error_code closed;
      if (std::filesystem::read_symlink(entry.path(), closed) == socket) return true;
    }
    return false;
  };
  for (int tries = 0; holds() && tries < 500; ++tries) usleep(10'000);
  EXPECT_FALSE(holds()) << "its end would not refuse connections";
  launcher(0).send(SIGTERM);
  expect_all(128 + SIGTERM);
}

TEST_F(Nodes, ListenForRanksOnTheInterfaceAlone) {
  variables_["LOCKSTEP_INTERFACE"] = "lo";
  start(0, 1,
        shell("grep -l \":$(printf %04X ${LOCKSTEP_MASTER##*:}) 0*:0000 0A\" "
              "/proc/net/tcp /proc/net/tcp6; true"));
  start(1, 1, {"true"});
  const auto ended = wait();
  EXPECT_EQ(ended[0].out, "/proc/net/tcp\n") << ended[0].err;
}

TEST_F(Nodes, WaitForTheRanksOfAllHosts) {
  TemporaryFolder folder;
  const auto flag = (folder / "flag").string();
  start(0, 1, shell(concat("echo pid $$; while [ ! -e ", flag, " ]; do sleep 0.02; done; exit 3")));
  start(1, 1, shell("echo pid $$"));
  launcher(1).await_output("pid ");
  launcher(0).await_output("pid ");
  std::ofstream(flag).put('x');
  expect_all(3);
}

TEST_F(Nodes, ReportTheSameFirstCause) {
  for (const int rank : {1, 2}) {
    launchers_.clear();
    start_all(shell(concat("echo pid $$; [ $LOCKSTEP_RANK != ", rank, " ] && exec sleep 100; ",
                           "echo bad luck >&2; exit 3")));
    const auto ended = wait();
    const auto cause =
        concat("lockstep: rank ", rank, " of 3 failed first: it ended with exit code 3 (host ");
    EXPECT_THAT(ended, Each(ends(3, {cause, "bad luck"})));
    const auto line = [&](const Ended& one) {
      return first_line(one.err.substr(one.err.find(cause)));
    };
    EXPECT_EQ(line(ended[0]), line(ended[1]));
    EXPECT_THAT(ended[rank == 1 ? 1 : 0].err, HasSubstr("stderr:\n  | bad luck"));
    EXPECT_THAT(ended[rank == 1 ? 0 : 1].err, HasSubstr("stderr is above"));
  }
}

TEST_F(Nodes, EndWhenALauncherIsKilled) {
  count_ = 3;
  for (const int killed : {0, 1}) {
    launchers_.clear();
    start_all(sleep_on);
    launcher(killed).send(SIGKILL);
    auto ended = wait();
    ended.erase(ended.begin() + killed);
    for (const auto& one : ended) {
      EXPECT_THAT(
          one,
          ends(1, {concat("node ", killed, " of 3 failed first: its launcher has ended (host ")}));
      EXPECT_LT(one.seconds.count(), 15);
    }
  }
}

TEST_F(Nodes, LoseNode0AfterItsTexts) {
  const auto options = [&](int number) {
    launch::Options made;
    made.timeout = 20;
    made.node = {.count = 2,
                 .number = number,
                 .host = master_,
                 .port = static_cast<std::uint16_t>(std::stoi(port_)),
                 .token = std::string(64, 'a')};
    return made;
  };
  const auto all = [](int) { return false; };
  std::jthread node_0([&] {
    launch::Nodes nodes(
        options(0), [] {}, all);
    nodes.exchange("of 0");
    while (!nodes.texts()) nodes.update();
  });
  launch::Nodes nodes(
      options(1), [] {}, all);
  nodes.exchange("of 1");
  node_0.join();
  while (nodes.take_received().empty()) nodes.update();
  EXPECT_THAT(nodes.texts(), ::testing::Optional(ElementsAre("of 0", "of 1")));
  nodes.exchange("result of 1");
  EXPECT_THAT(nodes.texts(),
              ::testing::Optional(ElementsAre(StartsWith("lost: node 0 of 2"), "result of 1")));
  EXPECT_THAT(nodes.lost(), ElementsAre(0));
}

TEST_F(Nodes, EndWhenALauncherIsSilent) {
  variables_["LOCKSTEP_HEARTBEAT"] = "3";
  start_all(sleep_on);
  launcher(1).send(SIGSTOP);
  const auto ended = launcher(0).wait();
  launcher(1).send(SIGCONT);
  const auto other = launcher(1).wait();
  EXPECT_THAT(ended, ends(1, {"node 1 of 2 failed first: no heartbeat from its launcher for 3 s"}));
  EXPECT_THAT(other, ends(1,
                          {"node 1 of 2 failed first: its launcher had been stopped for ",
                           " s, longer than LOCKSTEP_HEARTBEAT, 3 s"},
                          {"node 0 of 2 failed first"}));
  EXPECT_TRUE(await_all_ended(std::chrono::seconds(10)));
}

TEST_F(Nodes, EndAtASignalToOne) {
  for (const auto& [node, signal] : {std::pair(0, SIGINT), std::pair(1, SIGTERM)}) {
    launchers_.clear();
    start_all(sleep_on);
    launcher(node).send(signal);
    expect_all(128 + signal, "lockstep: ended by SIG");
  }
}

TEST_F(Nodes, KillTheRanksAtASecondSignal) {
  start_all({"--grace", "60", "sh", "-c", "trap '' INT; echo pid $$; while :; do sleep 100; done"});
  launcher(0).send(SIGINT);
  launcher(0).send(SIGTERM);  // two of the same number could be one signal
  for (const auto& one : wait()) {
    EXPECT_EQ(one.code, 128 + SIGINT);
    EXPECT_LT(one.seconds.count(), 30);
  }
}

TEST_F(Nodes, PassSignalsOnToAllRanksAndTreatOneToAllAsOne) {
  for (const auto& [name, signal, node] : {std::tuple("USR1", SIGUSR1, 1), {"TERM", SIGTERM, 0}}) {
    launchers_.clear();
    start_all(shell(concat("trap 'echo told; sleep 2; echo saved; exit 0' ", name,
                           "; echo pid $$; while :; do sleep 0.05; done")));
    launcher(node).send(signal);
    launcher(1 - node).await_output("told");
    // A batch system sends it to all nodes: this one is not a second one.
    if (signal == SIGTERM) launcher(1 - node).send(signal);
    const auto ended = wait();
    EXPECT_THAT(ended[0].out, AllOf(HasSubstr("\nsaved"), HasSubstr("[1] saved")));
    EXPECT_THAT(ended[1].out, HasSubstr("[2] saved"));
  }
}

TEST_F(Nodes, HeedSignalsThatCameBeforeAllHaveJoined) {
  count_ = 3;
  variables_["LOCKSTEP_LOG"] = "debug";
  const auto told = shell("trap 'echo told; exit 0' USR1; for i in $(seq 100); do sleep 0.1; done");
  for (const int signal : {SIGUSR1, SIGINT}) {
    launchers_.clear();
    start(0, 1, told);
    start(1, 1, told);
    // Node 1 has the connection when it writes that.
    EXPECT_TRUE(launcher(1).await_error("reached node 0"));
    launcher(1).send(signal);
    if (signal == SIGINT) {
      expect_all(128 + SIGINT);
    } else {
      start(2, 1, told);
      for (const auto& one : wait()) EXPECT_THAT(one, prints({"told"}));
    }
  }
}

TEST_F(Nodes, NameThoseThatDoNotJoin) {
  count_ = 4;
  for (const int node : {0, 1}) start(node, 1, {"--timeout", "2", "--stall-warning", "1", "true"});
  const auto ended = wait();
  for (const auto& one : ended) EXPECT_THAT(one, ends(1, {"waited 2 s for nodes 2, 3"}, {"rank"}));
  EXPECT_THAT(ended[0].err, HasSubstr("has waited 1 s for nodes "));
}

TEST_F(Nodes, RefuseAnotherToken) {
  TemporaryFolder folder;
  const auto with_token = [&](char digit) {
    const auto path = folder / concat("token", digit);
    std::ofstream(path) << std::string(64, digit);
    std::filesystem::permissions(path, std::filesystem::perms::owner_read);
    return path.string();
  };
  variables_["LOCKSTEP_LOG"] = "warn";  // of every refusal: the last attempt may be cut short
  variables_["LOCKSTEP_TOKEN_FILE"] = with_token('1');
  start(0, 1, {"--timeout", "4", "true"});
  variables_["LOCKSTEP_TOKEN_FILE"] = with_token('2');
  start(1, 1, {"--timeout", "2", "--stall-warning", "1", "true"});
  const auto ended = wait();
  EXPECT_THAT(ended[0], ends(1, {"node 1", "its token differs"}));
  EXPECT_THAT(ended[1], ends(1, {"node 1 of 2", "has tried for 1 s to reach node 0 at "}));
}

TEST_F(Nodes, WaitForANameThatAppearsLater) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can replace /etc/hosts";
  TemporaryFolder folder;
  const auto names = (folder / "hosts").string();
  std::ofstream(names) << "127.0.0.1 localhost\n";
  master_ = "h0.lockstep.invalid";
  start(1, 1, {"echo", "started"},
        {"/usr/bin/unshare", "--mount", "sh", "-c", "mount --bind \"$0\" /etc/hosts && exec \"$@\"",
         names});
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  std::ofstream(names, std::ios::app) << "127.0.0.1 h0.lockstep.invalid\n";
  start(0, 1, {"echo", "started"});
  for (const auto& one : wait()) {
    EXPECT_THAT(one, prints({"started"}));
  }
}

TEST_F(Nodes, NameAProgramThatCannotRun) {
  TemporaryFolder folder;
  const auto program = write_program(folder / "program", "no program");
  start(0, 1, sleep_on);
  start(1, 1, {program});
  const auto ended = wait();
  EXPECT_THAT(ended[0], ends(1, {concat("node 1 of 2 failed first: cannot run '", program)}));
  EXPECT_EQ(ended[1].code, 2);
}

/// Node 1 joins by a host that an attacker has.
TEST_F(Nodes, RefuseAReplayAndKeepTheRanksTokenSecret) {
  count_ = 3;
  const auto at =
      control::Address::any(AF_INET).with_port(static_cast<std::uint16_t>(std::stoi(port_)));
  const Relay relay(at);
  const auto words = shell("echo token=$LOCKSTEP_TOKEN");
  start(0, 1, words);
  const auto port = std::exchange(port_, std::to_string(relay.address().port()));
  start(1, 1, words);
  port_ = port;
  const auto hello_bytes = header_bytes + sizeof(control::Hello) + control::FrameMac::bytes;
  while (relay.passed().size() < hello_bytes) std::this_thread::yield();
  const auto replay = stranger(at);
  challenge(replay);
  say(replay, relay.passed().substr(0, hello_bytes));
  EXPECT_THAT(heard(replay), HasSubstr("its token differs"));

  start(2, 1, words);
  for (const auto& one : wait()) {
    EXPECT_EQ(one.code, 0) << one.err;
    const auto begin = one.out.find("token=");
    ASSERT_NE(begin, std::string::npos) << one.out;
    const auto token = first_line(one.out.substr(begin + 6));
    EXPECT_EQ(token.size(), 64u);
    EXPECT_THAT(relay.returned(), Not(HasSubstr(token)));
  }
}

}  // namespace
}  // namespace lockstep::testing
