#include <filesystem>
#include <fstream>
#include <ostream>
#include <string>
#include <vector>

#include "tests/launch/launched.h"
#include "tests/matchers.h"
#include "tests/temporary_folder.h"

namespace lockstep::testing {
namespace {

using Words = std::vector<std::string>;

constexpr int usage_error = 2;

/// A command line that must be refused, and words of the refusal.
struct Refused {
  std::string name;
  Words arguments;
  Words said;
};

void PrintTo(const Refused& refused, std::ostream* out) { *out << refused.name; }

class BadInput : public ::testing::TestWithParam<Refused> {};

TEST_P(BadInput, IsOneClearError) {
  Words command{lockstep_program()};
  command.insert(command.end(), GetParam().arguments.begin(), GetParam().arguments.end());
  const auto ended = Launched(command).wait();
  EXPECT_EQ(ended.code, usage_error) << ended.err;
  EXPECT_EQ(ended.out, "");
  for (const auto& word : GetParam().said) EXPECT_THAT(ended.err, HasSubstr(word));
  EXPECT_FALSE(anything_left());
}

INSTANTIATE_TEST_SUITE_P(
    CommandLine, BadInput,
    ::testing::Values(
        Refused{"NoCommand", {}, {"run", "bench", "doctor"}},
        Refused{"UnknownCommand",
                {"walk"},
                {"lockstep: unknown command 'walk', expected one of: run, bench, plan"}},
        Refused{"MisspeltCommand",
                {"rnu", "-n", "2", "true"},
                {"lockstep: unknown command 'rnu', did you mean run?\n"}},
        Refused{"RemovedCommand",
                {"completion", "bash"},
                {"lockstep: completion: lockstep no longer prints", "Run lockstep --help"}},
        Refused{"RemovedCommandBeforeAnother",
                {"man", "run", "--output", "pages"},
                {"lockstep: man: lockstep no longer prints man pages", "lockstep COMMAND --help"}},
        Refused{"OptionWithoutCommand", {"--verison"}, {"'--verison', did you mean --version?"}},
        Refused{"MisspeltOptionOfBench",
                {"bench", "all_reduce", "--repaets", "3"},
                {"lockstep: bench: unknown option '--repaets', did you mean --repeats?\n"}},
        Refused{"NoRanks", {"run", "-n", "0", "true"}, {"0 ranks", "1 to 512"}},
        Refused{"NegativeRanks", {"run", "-n", "-2", "true"}, {"-2 ranks", "1 to 512"}},
        Refused{"OneRankTooMany", {"run", "-n", "513", "true"}, {"513 ranks", "1 to 512"}},
        Refused{"AbsurdlyManyRanks", {"run", "-n", "100000", "true"}, {"100000", "512"}},
        Refused{"RanksBeyondAnyNumber", {"run", "-n", "99999999999999999999", "true"}, {"ranks"}},
        Refused{"RanksThatAreNoNumber", {"run", "-n", "two", "true"}, {"ranks", "two"}},
        Refused{"RanksNotGiven", {"run", "true"}, {"how many ranks"}},
        Refused{"NoProgram", {"run", "-n", "2"}, {"no program"}},
        Refused{"UnknownOption",
                {"run", "-n", "2", "--nonsense", "true"},
                {"'--nonsense' (the program's own come after its name)"}},
        Refused{"MisspeltOption",
                {"run", "-n", "2", "--rnaks", "3", "true"},
                {"run: unknown option '--rnaks', did you mean --ranks?"}},
        Refused{"UnknownShortOption", {"run", "-z", "-n", "2", "true"}, {"-z"}},
        Refused{"UnknownBinding", {"run", "-n", "2", "--bind", "sockets", "true"}, {"sockets"}},
        Refused{
            "UnknownFreedMemory", {"run", "-n", "2", "--freed-memory", "tuned", "true"}, {"tuned"}},
        Refused{
            "TimeoutOfZero", {"run", "-n", "2", "--timeout", "0", "true"}, {"timeout", "got 0"}},
        Refused{"TimeoutNotANumber", {"run", "-n", "2", "--timeout", "nan", "true"}, {"timeout"}},
        Refused{"UnknownInterface",
                {"run", "-n", "2", "--interface", "nosuch0", "true"},
                {"interface: got 'nosuch0', expected one of: ", "lo"}},
        Refused{"NegativeGrace", {"run", "-n", "2", "--grace", "-1", "true"}, {"--grace", "-1"}},
        Refused{"NegativeLinger", {"run", "-n", "2", "--linger", "-1", "true"}, {"linger", "-1"}},
        Refused{"LingerNotANumber", {"run", "-n", "2", "--linger", "nan", "true"}, {"linger"}},
        Refused{"ProgramMissing", {"run", "-n", "2", "./missing"}, {"./missing", "No such file"}},
        Refused{
            "ProgramNotInPath", {"run", "-n", "2", "no-such-program"}, {"no-such-program", "PATH"}},
        Refused{"ProgramIsAFolder", {"run", "-n", "2", "/"}, {"'/'", "directory"}},
        Refused{"LogsUnderAFile",
                {"run", "-n", "2", "--log-dir", "/dev/null/logs", "true"},
                {"/dev/null/logs"}}),
    [](const ::testing::TestParamInfo<Refused>& test) { return test.param.name; });

class BadProgram : public ::testing::Test {
 protected:
  std::string make(const std::string& name, const std::string& text, bool executable) {
    const auto file = folder_ / name;
    std::ofstream(file) << text;
    if (executable) std::filesystem::permissions(file, std::filesystem::perms::owner_all);
    return file.string();
  }
  void expect_refused(const std::string& program, const std::string& why) {
    const auto ended = run_lockstep({"-n", "3", program});
    EXPECT_THAT(ended, ends(usage_error, {"cannot run '" + program + "'", why}));
    EXPECT_FALSE(anything_left());
  }

  TemporaryFolder folder_;
};

TEST_F(BadProgram, CannotRun) {
  expect_refused(make("plain", "#!/bin/sh\n", false), "not executable");
  expect_refused(make("bytes", "what is this", true), "format");
  expect_refused(make("script", "#!/no/such/shell\n", true), "No such file");
}

TEST_F(BadProgram, InThisFolderButNotInPath) {
  make("here", "#!/bin/sh\n", true);
  Launched job(
      {"/bin/sh", "-c",
       "cd '" + folder_.path().string() + "' && exec '" + lockstep_program() + "' run -n 2 here"});
  EXPECT_THAT(job.wait().err, HasSubstr("did you mean ./here?"));
}

TEST(Logs, OfALaterRankThatCannotBeWrittenStartNothing) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "rank-1.err");
  const auto ended =
      run_lockstep({"-n", "2", "--log-dir", folder.path().string(), "sh", "-c", "echo started"});
  EXPECT_EQ(ended.code, usage_error);
  EXPECT_EQ(ended.out, "");
  EXPECT_THAT(ended.err, HasSubstr("rank-1.err"));
}

TEST(WorldMemory, ThatTheMachineRefusesIsOneClearError) {
  Launched job({"/bin/sh", "-c",
                "ulimit -f 100 && exec '" + lockstep_program() + "' run -n 2 echo started"});
  const auto ended = job.wait();
  EXPECT_EQ(ended.code, 1);
  EXPECT_EQ(ended.out, "");
  EXPECT_THAT(ended.err, AllOf(HasSubstr("memory"), HasSubstr("ulimit -f")));
  EXPECT_FALSE(anything_left());
}

TEST(WorldMemory, FitsALimitOfTheAddressSpace) {
  if (is_sanitized) GTEST_SKIP() << "a sanitizer maps more than any limit";
  const auto under_limit = [](const std::string& command) {
    return Launched({"/bin/sh", "-c",
                     "ulimit -v 1000000 && exec '" + lockstep_program() + "' " + command})
        .wait();
  };
  EXPECT_THAT(under_limit("doctor").out, HasSubstr(", limited by ulimit -v, which left 9"));
  const auto two = under_limit("run -n 2 '" + rank_program() + "' share-memory");
  const auto one = under_limit("run -n 1 '" + rank_program() + "' share-memory");
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_THAT(two, ends(1, {"cannot allocate 268435456 bytes",
                            "half of them for 2 heaps: raise ulimit -v"}));
}

/// Arguments of the program are its own, whatever they look like.
TEST(Arguments, PassUntouched) {
  const Words own{"-n", "5",  "--dry-run", "--",     "-v", "--help", "[a,b]",
                  "{}", "%%", "",          "a b\tc", "*",  "bench",  "run"};
  std::string expected;
  for (const auto& word : own) expected += "<" + word + ">\n";
  for (const Words& separator : {Words{}, Words{"--"}}) {
    Words arguments{"-n", "1"};
    arguments.insert(arguments.end(), separator.begin(), separator.end());
    arguments.insert(arguments.end(), {"printf", "<%s>\n"});
    arguments.insert(arguments.end(), own.begin(), own.end());
    EXPECT_EQ(run_lockstep(arguments).out, expected);
  }
}

TEST(Arguments, AProgramMayBeNamedAsACommand) {
  const auto ended = run_lockstep({"-n", "1", "--dry-run", "--", rank_program(), "run"});
  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(ended.out, HasSubstr(rank_program() + " run\n"));
}

}  // namespace
}  // namespace lockstep::testing
