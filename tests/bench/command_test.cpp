#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/temporary_folder.h"

// The command line itself: `lockstep bench …`, as a user starts it.
namespace {

using ::lockstep::testing::TemporaryFolder;
using ::testing::HasSubstr;

struct Result {
  int exit_code = -1;
  std::string text;  ///< stdout and stderr
};

Result run(const std::string& command_line) {
  const std::string command = command_line + " 2>&1";
  Result result;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return result;
  std::array<char, 4096> buffer;
  for (std::size_t n; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    result.text.append(buffer.data(), n);
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  return result;
}

Result run_bench(const std::string& arguments) {
  return run("'" LOCKSTEP_BINARY_DIR "/lockstep' bench " + arguments);
}

TEST(BenchCommand, MeasuresProcessesAndThreads) {
  for (const std::string how : {"", "--threads "}) {
    const Result result = run_bench(
        "all_reduce -n 3 " + how + "--min 1KiB --max 64KiB --factor 64 --repeats 2 --check --json");
    EXPECT_EQ(result.exit_code, 0) << result.text;
    std::istringstream lines(result.text);
    int rows = 0;
    for (std::string line; std::getline(lines, line); ++rows) {
      const auto json = nlohmann::json::parse(line, nullptr, false);
      ASSERT_FALSE(json.is_discarded()) << line;
      EXPECT_EQ(json["wrong"], 0);
      EXPECT_EQ(json["ranks"], 3);
      EXPECT_EQ(json["started_as"], how.empty() ? "processes" : "threads");
    }
    EXPECT_EQ(rows, 4);
  }
}

TEST(BenchCommand, TakesTheWorldItIsStartedIn) {
  const std::string lockstep = "'" LOCKSTEP_BINARY_DIR "/lockstep'";
  const Result result = run(lockstep + " run -n 3 " + lockstep +
                            " bench all_reduce --max 1KiB --repeats 1 --memory group --json");
  EXPECT_EQ(result.exit_code, 0) << result.text;
  EXPECT_THAT(result.text, HasSubstr("\"ranks\":3"));
}

TEST(BenchCommand, NamesWhatIsWrongWithItsArguments) {
  struct {
    const char* arguments;
    const char* expected;
  } const cases[] = {
      {"all_reduce -n 0", "-n is 0"},
      {"all_reduce -n 100000", "-n is 100000"},
      {"all_reduce --min 2MiB --max 1MiB", "more than --max"},
      {"all_reduce --max 900TiB", "memory available"},
      {"all_reduce --max 16000000TiB", "memory available"},
      {"all_reduce --min 0", "--min is 0"},
      {"all_reduce --factor 1", "--factor"},
      {"all_reduce --repeats -1", "--repeats"},
      {"all_reduce --min 1QB", "--min"},
      {"all_reduce --max 99999999999999999999", "--max"},
      {"all_reduce --dtype float31", "bfloat16"},
      {"all_reduce --op mean", "product"},
      {"all_reduce --wire float64", "expected float16 or bfloat16"},
      {"all_reduce --wire float16 --op max", "--wire is float16 for all_reduce max"},
      {"broadcast --wire float16", "--wire is float16 for broadcast"},
      {"all_reduce --memory heap", "private"},
      {"all_reduce --algorithm tree", "--algorithm"},
      {"all_reduce --algorithm ring", "without a launcher of several hosts"},
      {"all_reduces", "reduce_scatter"},
      {"all_reduce --no-such-flag", "no-such-flag"},
      {"", "collective"},
  };
  for (const auto& c : cases) {
    const Result result = run_bench(c.arguments);
    EXPECT_NE(result.exit_code, 0) << c.arguments;
    EXPECT_THAT(result.text, HasSubstr(c.expected)) << c.arguments;
    EXPECT_THAT(result.text, ::testing::Not(HasSubstr("bad_alloc"))) << c.arguments;
  }
}

TEST(BenchCommand, RefusesOptionsOfHostMemoryWithDevices) {
  for (const auto& [arguments, got] :
       {std::pair("all_reduce --threads", "got --threads with tensors of devices"),
        std::pair("all_reduce --memory group", "got --memory group with tensors of devices"),
        std::pair("all_reduce --stream", "got --stream with tensors of devices"),
        std::pair("barrier", "got barrier with tensors of devices")}) {
    const Result result = run_bench(std::string(arguments) + " --device cuda");
    EXPECT_NE(result.exit_code, 0);
    EXPECT_THAT(result.text, HasSubstr(got));
  }
}

TEST(BenchCommand, NamesTheProgramForDevices) {
  const TemporaryFolder folder;
  std::filesystem::copy(LOCKSTEP_BINARY_DIR "/lockstep", folder.path() / "lockstep");
  const Result result =
      run("'" + (folder.path() / "lockstep").string() + "' bench all_reduce --device cuda");
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.text, HasSubstr("the program bench_device, which measures tensors of devices, "
                                     "is not in the folder of lockstep"));
}

}  // namespace
