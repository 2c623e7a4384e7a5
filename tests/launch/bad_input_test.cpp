#include <cerrno>

#include "launch/system.h"
#include "lockstep/error.h"
#include "tests/launch/launched.h"
#include "tests/message_of.h"

namespace lockstep::testing {
namespace {

TEST(BadInput, IsOneClearError) {
  expect_refused(
      {lockstep_program()},
      {{"", {"run", "bench", "doctor"}},
       {"walk", {"lockstep: unknown command 'walk', expected one of: run, bench, plan"}},
       {"rnu -n 2 true", {"lockstep: unknown command 'rnu', did you mean run?\n"}},
       {"completion bash",
        {"lockstep: completion: lockstep no longer prints", "Run lockstep --help"}},
       {"man run --output pages",
        {"lockstep: man: lockstep no longer prints man pages", "lockstep COMMAND --help"}},
       {"--verison", {"'--verison', did you mean --version?"}},
       {"bench all_reduce --repaets 3",
        {"lockstep: bench: unknown option '--repaets', did you mean --repeats?\n"}},
       {"explain /proc/self/exe", {"expected a flight record"}},
       {"explain no-such-logs", {"got no-such-logs, ", "no such file or folder"}},
       {"run -n 0 true", {"0 ranks", "1 to 512"}},
       {"run -n 513 true", {"513 ranks", "1 to 512"}},
       {"run -n 99999999999999999999 true", {"ranks"}},
       {"run true", {"how many ranks"}},
       {"run -n 2", {"no program"}},
       {"run -n 2 --nonsense true", {"'--nonsense' (the program's own come after its name)"}},
       {"run -n 2 --rnaks 3 true", {"run: unknown option '--rnaks', did you mean --ranks?"}},
       {"run --nproc_per_node=2 true", {"'--nproc_per_node=2', did you mean --ranks?"}},
       {"run -q -np 2 true", {"--ranks: got 'p', expected a number", "; write -n 2 for -np 2"}},
       {"run -z -n 2 true", {"-z"}},
       {"run -n 2 --bind sockets true", {"sockets"}},
       {"run -n 2 --freed-memory tuned true", {"tuned"}},
       {"run -n 2 --denormals drop true", {"--denormals"}},
       {"run -n 2 --timeout 0 true", {"--timeout: got '0', expected a number from 0.001 to 1e+09"}},
       {"run -n 2 --timeout nan true", {"timeout"}},
       {"run -n 2 --stall-warning -1 true", {"stall"}},
       {"run -n 2 --interface nosuch0 true", {"interface: got 'nosuch0', expected one of: ", "lo"}},
       {"run -n 2 --grace -1 true", {"--grace", "-1"}},
       {"run -n 2 --linger -1 true", {"linger", "-1"}},
       {"run -n 2 --linger nan true", {"linger"}},
       {"run -n 2 --max-restarts -1 true", {"--max-restarts: got '-1'"}},
       {"run -n 2 --restart-delay -1 true",
        {"--restart-delay: got '-1', expected a number from 0 to 1e+06"}},
       {"run -n 2 ./missing", {"./missing", "No such file"}},
       {"run -n 2 --max-restarts 3 no-such-program", {"no-such-program", "PATH"}},
       {"run -n 2 /", {"'/'", "directory"}},
       {"run -n 2 --log-dir /dev/null/logs true", {"/dev/null/logs"}},
       {"run -n 1 --spare b:1 true", {"got --spare without --hosts or --hostfile"}},
       {"run -n 1 --min-hosts 2 true",
        {"--min-hosts: got 2, expected 1 to 1, the number of hosts"}},
       {"run --hosts localhost:1,b:1 --spare c true", {"--spare: got 'c', expected HOST:RANKS"}},
       {"run --hosts localhost:1,b:1 -n 2 true", {"got --hosts or --hostfile with -n"}},
       {"run --hostfile / true", {"--hostfile: cannot read '/'"}},
       {"run --hostfile /dev/null true", {"--hostfile: got no host"}},
       {"run -n 1 -x LOCKSTEP_NOT_SET true",
        {"--export: got 'LOCKSTEP_NOT_SET', expected NAME=VALUE"}}});
}

TEST(BadProgram, CannotRun) {
  const TemporaryFolder folder;
  std::ofstream(folder / "plain") << "#!/bin/sh\n";
  write_program(folder / "bytes", "what is this");
  write_program(folder / "script", "#!/no/such/shell\n");
  for (const auto& [name, why] :
       {std::pair("plain", "not executable"), std::pair("bytes", "format"),
        std::pair("script", "No such file")}) {
    const auto program = (folder / name).string();
    EXPECT_THAT(run_lockstep({"-n", "3", program}), ends(2, {"cannot run '" + program + "'", why}));
  }
  write_program(folder / "here", "#!/bin/sh\n");
  EXPECT_THAT(run_in_shell("run -n 2 here", concat("cd ", folder.path().string(), " && ")).err,
              HasSubstr("did you mean ./here?"));
}

TEST(Processes, LimitIsNamed) {
  const auto text = message_of<CommError>([] {
    errno = EAGAIN;  // of fork()
    launch::throw_system("start rank 2");
  });
  EXPECT_THAT(text, AllOf(HasSubstr("start rank 2"), HasSubstr("ulimit -u")));
}

TEST(WorldMemory, ThatTheMachineRefusesIsOneClearError) {
  const auto ended = run_in_shell("run -n 2 echo started", "ulimit -f 100 && ");
  EXPECT_EQ(ended.code, 1);
  EXPECT_EQ(ended.out, "");
  EXPECT_THAT(ended.err, AllOf(HasSubstr("memory"), HasSubstr("ulimit -f")));
}

TEST(WorldMemory, FitsALimitOfTheAddressSpace) {
  if (is_sanitized) GTEST_SKIP() << "a sanitizer maps more than any limit";
  const auto under_limit = [](const std::string& command) {
    return run_in_shell(command, "ulimit -v 1000000 && ");
  };
  EXPECT_THAT(under_limit("doctor").out, HasSubstr(", limited by ulimit -v, which left 9"));
  const auto two = under_limit("run -n 2 '" + rank_program() + "' share-memory");
  const auto one = under_limit("run -n 1 '" + rank_program() + "' share-memory");
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_THAT(two, ends(1, {"cannot allocate 268435456 bytes",
                            "half of them for 2 heaps: raise ulimit -v"}));
}

/// Words of the program are its own, whatever they look like.
TEST(Arguments, PassUntouched) {
  const Words own{"-n", "5",  "--dry-run", "--",     "-v", "--help", "[a,b]",
                  "{}", "%%", "",          "a b\tc", "*",  "bench",  "run"};
  std::string expected;
  for (const auto& word : own) expected += "<" + word + ">\n";
  for (const Words& begin : {Words{"-n", "1"}, Words{"-np", "1", "--"}}) {
    EXPECT_EQ(run_lockstep(joined(begin, {{"printf", "<%s>\n"}, own})).out, expected);
  }
}

}  // namespace
}  // namespace lockstep::testing
