#include "launch/remote_nodes.h"

#include <algorithm>

#include "core/system/topology.h"
#include "tests/launch/job_on_nodes.h"
#include "tests/launch/simulated_hosts.h"
#include "tests/message_of.h"

namespace lockstep::testing {
namespace {

using launch::first_of;
using launch::parse_hosts;

TEST(Hosts, AreReadFromAListOrAFile) {
  const auto own = lockstep::detail::host_name();
  for (const auto& text :
       {concat(own, ":2,b:3"), concat("# hosts\n", own, " slots=2\n\nb:3 # last\n"),
        std::string("localhost:2,b slots=3"), std::string("127.0.0.1:2\nb:3"),
        std::string("localhost slots=2 # was 4, slow\n# broken: c:2,d:4\nb:3")}) {
    const auto hosts = parse_hosts(text, "--hosts");
    ASSERT_EQ(hosts.size(), 2U) << text;
    EXPECT_EQ(hosts[0].ranks, 2);
    EXPECT_EQ(hosts[1].name, "b");
    EXPECT_EQ(hosts[1].ranks, 3);
  }
}

TEST(Hosts, AreRefusedWithTheEntry) {
  for (const std::string entry : {"b", "b:0", "b:x", "b slots=", "b 2", "b:1 more"}) {
    EXPECT_THAT(
        message_of<InvalidArgument>([&] { parse_hosts(concat("localhost:1,", entry), "--hosts"); }),
        HasSubstr(concat("--hosts: got '", entry, "'")));
  }
  EXPECT_THAT(message_of<InvalidArgument>(
                  [] { first_of(parse_hosts("# a:2\n", "--hostfile"), "--hostfile"); }),
              HasSubstr("--hostfile: got no host, expected this host"));
  EXPECT_THROW(first_of({{"elsewhere.invalid", 1}, {"localhost", 1}}, "--hosts"), InvalidArgument);
}

TEST_F(HostsBySsh, StartOneWorld) {
  const auto script =
      "echo $LOCKSTEP_RANK/$LOCKSTEP_WORLD_SIZE $(hostname) $(cat /proc/$PPID/comm) $PWD "
      "$OMP_MINE$NCCL_MINE $FOO $BAR $LOCKSTEP_HOST$LOCKSTEP_NODE_TOKEN.; cat";
  const auto ended =
      Launched(hosts_.command({"--hosts", hosts_.list(), "-x", "FOO", "--export=BAR=a b",
                               "--export=LOCKSTEP_HOST=a", "--log-dir", "", "sh", "-c", script}),
               {{"OMP_MINE", "se"}, {"NCCL_MINE", "nt"}, {"FOO", "named"}, {"OTHER", "not sent"}})
          .wait();
  EXPECT_EQ(ended.code, 0) << ended.err;
  const auto folder = concat("lockstep ", std::filesystem::current_path().string());
  for (const auto& [rank, host] : {std::pair(1, 1), std::pair(2, 1), std::pair(3, 2)}) {
    EXPECT_THAT(ended.out,
                HasSubstr(concat('[', rank, ' ', hosts_.name(host), "] ", rank, "/4 ",
                                 hosts_.name(host), ' ', folder, " sent named a b .\n")));
  }
  EXPECT_THAT(ended.out,
              HasSubstr(concat("0/4 ", hosts_.name(0), ' ', folder, " sent named a b a.\n")));
  EXPECT_TRUE(await_all_ended(std::chrono::seconds(10)));
}

TEST_F(HostsBySsh, NeedNoStdinAndNoEnvironment) {
  const auto words = joined({"/bin/sh", "-c", "exec \"$0\" \"$@\" <&-"},
                            {hosts_.command({"--standalone", "--hosts", hosts_.list(), "true"})});
  EXPECT_EQ(Launched(words, {{"PET_NNODES", "2"}}).wait().code, 0);
}

TEST_F(HostsBySsh, LoseNoOutputToASlowReader) {
  const auto hosts = concat(SimulatedHosts::address(0), ":1,", hosts_.name(1), ":1");
  const auto script = "[ $LOCKSTEP_RANK = 0 ] || head -c 900000 /dev/zero | tr '\\0' x";
  const auto ended =
      run({"--hosts", hosts, "sh", "-c", script},
          {"/bin/sh", "-c", "{ \"$0\" \"$@\"; echo code $?; } | { sleep 7; wc -c; }"});
  EXPECT_GE(std::stol(ended.out), 900'000) << ended.err;
}

TEST_F(HostsBySsh, FailTheJobIfTheirLauncherFails) {
  const auto failing =
      write_program(folder_ / "failing", "#!/bin/sh\n" + hosts_.ssh() + " \"$@\"; exit 7\n");
  auto words = hosts_.command({"--hosts", hosts_.list(), "true"});
  std::ranges::replace(words, hosts_.ssh(), failing);
  EXPECT_THAT(Launched(words).wait(),
              ends(1, {concat("the output of host ", hosts_.name(1)),
                       "ssh or the launcher there ended with exit code 7"}));
}

TEST_F(HostsBySsh, ReportTheFirstCauseOnce) {
  const auto path = (folder_ / "hosts").string();
  std::ofstream(path) << SimulatedHosts::address(0) << " slots=1\n"
                      << hosts_.name(1) << " slots=1\n";
  const auto ended = run({"--hostfile", path, "--grace", "1", "sh", "-c",
                          "[ $LOCKSTEP_RANK = 1 ] && exit 3; exec sleep 100"});
  EXPECT_EQ(ended.code, 3);
  const auto cause =
      concat("rank 1 of 2 failed first: it ended with exit code 3 (host ", hosts_.name(1));
  const auto at = ended.err.find(cause);
  ASSERT_NE(at, std::string::npos) << ended.err;
  EXPECT_EQ(ended.err.find(cause, at + 1), std::string::npos) << ended.err;
}

TEST_F(HostsBySsh, GiveRank0StdinIfAsked) {
  const auto out_with = [&](const std::string& option) {
    return run({"--hosts", hosts_.list(), option, "cat"},
               {"/bin/sh", "-c", "echo typed | \"$0\" \"$@\""})
        .out;
  };
  EXPECT_EQ(out_with("--stdin"), "typed\n");
  EXPECT_EQ(out_with("--quiet"), "");
}

TEST_F(HostsBySsh, AreAllInStatusAndExplain) {
  if (is_sanitized) GTEST_SKIP() << "four ranks that poll keep the hosts of other tests waiting";
  const auto logs = (folder_ / "logs").string();
  Launched launcher(
      hosts_.command({"--hosts", hosts_.list(), "--log-dir", logs, lockstep_program(), "bench",
                      "all_reduce", "--repeats", "1000000", "--max", "1KiB"}));
  launcher.await_output("(B)");  // all have joined
  const auto started = hosts_.started();
  auto pids = std::vector{launcher.pid()};
  for (const int host : {1, 2}) pids.push_back(numbers_after(started, hosts_.name(host)).at(0));
  for (const auto pid : pids) {
    const auto status =
        Launched({"/bin/sh", "-c",
                  "exec nsenter --target \"$1\" --mount --net --uts --root \"$0\" status $1",
                  lockstep_program(), std::to_string(pid)})
            .wait();
    EXPECT_THAT(status, prints({"4 ranks", hosts_.name(0), hosts_.name(1), hosts_.name(2)},
                               {"no record", "on other hosts"}));
  }
  kill(pids[2], SIGKILL);
  EXPECT_EQ(launcher.wait().code, 1);
  EXPECT_TRUE(await_all_ended(std::chrono::seconds(20)));
  const auto explain = run_cli({"explain", logs});
  EXPECT_THAT(explain, prints({"4 ranks, backend hierarchical, "}));
  EXPECT_THAT(explain.out, ContainsRegex("[34] records"));
}

TEST_F(HostsBySsh, EndIfTwoOfThemReachRank0Alone) {
  Launched launcher(
      hosts_.command({"--hosts", hosts_.list(), lockstep_program(), "bench", "all_reduce",
                      "--algorithm", "direct", "--repeats", "1000000", "--max", "1KiB"}),
      {{"LOCKSTEP_HEARTBEAT", "2"}});
  launcher.await_output("(B)");  // all have joined
  for (const int host : {1, 2}) hosts_.isolate(host);
  EXPECT_THAT(launcher.wait(), ends(1, {"tcp: the stream of rank ", " ended: Connection timed"}));
}

TEST_F(HostsBySsh, NameAHostThatCannotBeReached) {
  const std::string large(60'000, 'x');  // three are more than a pipe holds
  for (const auto& argument : {std::string(), large}) {
    const auto list = concat(SimulatedHosts::address(0), ":1,nowhere:1");
    EXPECT_THAT(run({"--hosts", list, "true", argument, argument, argument}),
                ends(1, {"run: host nowhere: ssh or the launcher there ended with exit code"}));
  }
  // An ssh that does not end, and does not read.
  const auto slow = (folder_ / "slow").string();
  write_program(slow, "#!/bin/sh\nexec sleep 100\n");
  EXPECT_THAT(run_lockstep({"--ssh", slow, "--hosts", "localhost:1,nowhere:1", "--timeout", "1",
                            "true", large, large, large}),
              ends(1, {"waited 1 s for node 1; node 1 is host nowhere"}));
}

TEST(RemoteNode, EndsWithItsStdin) {
  const TemporaryFolder folder;
  const auto pipe = (folder / "pipe").string();
  const std::string words =
      concat("/", '\0', '\0', "run", '\0', "--end-with-stdin", '\0', "--standalone", '\0', "-n",
             '\0', "1", '\0', "sh", '\0', "-c", '\0',
             "trap 'sleep 2; echo saved; exit' TERM; echo pid; while :; do sleep 0.1; done", '\0');
  std::ofstream(pipe) << words.size() << '\n' << words;
  Launched launcher({"/bin/sh", "-c",
                     "{ cat \"$1\"; while [ ! -e \"$1.end\" ]; do sleep 0.02; done; } | "
                     "\"$0\" run --join-by-stdin",
                     lockstep_program(), pipe});
  launcher.await_output("pid");
  std::ofstream(pipe + ".end").put('x');
  const auto ended = launcher.wait();
  EXPECT_EQ(ended.code, 128 + SIGTERM);
  EXPECT_THAT(ended.out, HasSubstr("saved"));
}

}  // namespace
}  // namespace lockstep::testing
