#include "tests/launch/refused.h"

namespace lockstep::testing {
namespace {

class BadInput : public ::testing::TestWithParam<Refused> {};

TEST_P(BadInput, IsOneClearError) {
  expect_refused(joined({lockstep_program()}, {words_of(GetParam().arguments)}), GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    CommandLine, BadInput,
    ::testing::Values(
        Refused{"NoCommand", "", {"run", "bench", "doctor"}},
        Refused{"UnknownCommand",
                "walk",
                {"lockstep: unknown command 'walk', expected one of: run, bench, plan"}},
        Refused{"MisspeltCommand",
                "rnu -n 2 true",
                {"lockstep: unknown command 'rnu', did you mean run?\n"}},
        Refused{"RemovedCommand",
                "completion bash",
                {"lockstep: completion: lockstep no longer prints", "Run lockstep --help"}},
        Refused{"RemovedCommandBeforeAnother",
                "man run --output pages",
                {"lockstep: man: lockstep no longer prints man pages", "lockstep COMMAND --help"}},
        Refused{"OptionWithoutCommand", "--verison", {"'--verison', did you mean --version?"}},
        Refused{"MisspeltOptionOfBench",
                "bench all_reduce --repaets 3",
                {"lockstep: bench: unknown option '--repaets', did you mean --repeats?\n"}},
        Refused{"NoRanks", "run -n 0 true", {"0 ranks", "1 to 512"}},
        Refused{"OneRankTooMany", "run -n 513 true", {"513 ranks", "1 to 512"}},
        Refused{"RanksBeyondAnyNumber", "run -n 99999999999999999999 true", {"ranks"}},
        Refused{"RanksNotGiven", "run true", {"how many ranks"}},
        Refused{"NoProgram", "run -n 2", {"no program"}},
        Refused{"UnknownOption",
                "run -n 2 --nonsense true",
                {"'--nonsense' (the program's own come after its name)"}},
        Refused{"MisspeltOption",
                "run -n 2 --rnaks 3 true",
                {"run: unknown option '--rnaks', did you mean --ranks?"}},
        Refused{"UnknownShortOption", "run -z -n 2 true", {"-z"}},
        Refused{"UnknownBinding", "run -n 2 --bind sockets true", {"sockets"}},
        Refused{"UnknownFreedMemory", "run -n 2 --freed-memory tuned true", {"tuned"}},
        Refused{"TimeoutOfZero", "run -n 2 --timeout 0 true", {"timeout", "got 0"}},
        Refused{"TimeoutNotANumber", "run -n 2 --timeout nan true", {"timeout"}},
        Refused{"UnknownInterface",
                "run -n 2 --interface nosuch0 true",
                {"interface: got 'nosuch0', expected one of: ", "lo"}},
        Refused{"NegativeGrace", "run -n 2 --grace -1 true", {"--grace", "-1"}},
        Refused{"NegativeLinger", "run -n 2 --linger -1 true", {"linger", "-1"}},
        Refused{"LingerNotANumber", "run -n 2 --linger nan true", {"linger"}},
        Refused{"ProgramMissing", "run -n 2 ./missing", {"./missing", "No such file"}},
        Refused{"ProgramNotInPath", "run -n 2 no-such-program", {"no-such-program", "PATH"}},
        Refused{"ProgramIsAFolder", "run -n 2 /", {"'/'", "directory"}},
        Refused{"LogsUnderAFile", "run -n 2 --log-dir /dev/null/logs true", {"/dev/null/logs"}}),
    name_of_refused);

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
    EXPECT_FALSE(anything_left());
  }
}

TEST(BadProgram, InThisFolderButNotInPath) {
  const TemporaryFolder folder;
  write_program(folder / "here", "#!/bin/sh\n");
  EXPECT_THAT(run_in_shell("run -n 2 here", concat("cd ", folder.path().string(), " && ")).err,
              HasSubstr("did you mean ./here?"));
}

TEST(WorldMemory, ThatTheMachineRefusesIsOneClearError) {
  const auto ended = run_in_shell("run -n 2 echo started", "ulimit -f 100 && ");
  EXPECT_EQ(ended.code, 1);
  EXPECT_EQ(ended.out, "");
  EXPECT_THAT(ended.err, AllOf(HasSubstr("memory"), HasSubstr("ulimit -f")));
  EXPECT_FALSE(anything_left());
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
  for (const Words& separator : {Words{}, Words{"--"}}) {
    EXPECT_EQ(run_lockstep(joined({"-n", "1"}, {separator, {"printf", "<%s>\n"}, own})).out,
              expected);
  }
}

TEST(Arguments, AProgramMayBeNamedAsACommand) {
  const auto ended = run_lockstep({"-n", "1", "--dry-run", "--", rank_program(), "run"});
  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(ended.out, HasSubstr(rank_program() + " run\n"));
}

}  // namespace
}  // namespace lockstep::testing
