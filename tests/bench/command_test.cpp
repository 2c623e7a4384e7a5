#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/launch/launched.h"

// The command line itself: `lockstep bench …`, as a user starts it.

namespace lockstep::testing {
namespace {

Ended run_bench(const std::string& arguments) { return run_in_shell("bench " + arguments); }

TEST(BenchCommand, MeasuresProcessesAndThreads) {
  for (const std::string how : {"", "--threads "}) {
    const auto ended = run_bench("all_reduce -n 3 " + how +
                                 "--min 1KiB --max 64KiB --factor 64 --repeats 2 --check --json");
    EXPECT_EQ(ended.code, 0) << ended.err;
    std::istringstream lines(ended.out + ended.err);
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

TEST(BenchCommand, TakesTheWorldItIsStartedInAndWritesATable) {
  const auto ended =
      run_in_shell("run -n 3 " + quoted(lockstep_program()) +
                   " bench all_reduce --max 1KiB --repeats 1 --memory group --check");
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.out + ended.err,
              AllOf(HasSubstr("busbw"), HasSubstr("3 ranks"), HasSubstr("# wrong elements: 0")));
}

TEST(BenchCommand, NamesWhatIsWrongWithItsArguments) {
  expect_refused(
      {lockstep_program(), "bench"},
      {{"all_reduce -n 0", {"-n is 0"}},
       {"all_reduce -n 100000", {"-n is 100000"}},
       {"all_reduce --min 2MiB --max 1MiB", {"more than --max"}},
       {"all_reduce --max 900TiB", {"memory available"}},
       {"all_reduce --max 16000000TiB", {"memory available"}},
       {"all_reduce --min 0", {"--min is 0"}},
       {"all_reduce --factor 1", {"--factor"}},
       {"all_reduce --repeats -1", {"--repeats"}},
       {"all_reduce --min 1QB", {"--min"}},
       {"all_reduce --max 99999999999999999999", {"--max"}},
       {"all_reduce --dtype float31", {"bfloat16"}},
       {"all_reduce --op mean", {"product"}},
       {"all_reduce --wire float64", {"expected float16 or bfloat16"}},
       {"all_reduce --wire float16 --op max", {"--wire is float16 for all_reduce max"}},
       {"broadcast --wire float16", {"--wire is float16 for broadcast"}},
       {"all_reduce --memory heap", {"private"}},
       {"all_reduce --algorithm tree", {"--algorithm"}},
       {"all_reduce --algorithm ring", {"without a launcher of several hosts"}},
       {"all_reduces", {"reduce_scatter"}},
       {"all_reduce --no-such-flag", {"no-such-flag"}},
       {"", {"collective"}},
       // Options of memory of the host.
       {"all_reduce --threads --device cuda", {"got --threads with tensors of devices"}},
       {"all_reduce --memory group --device cuda", {"got --memory group with tensors of devices"}},
       {"all_reduce --stream --device cuda", {"got --stream with tensors of devices"}},
       {"barrier --device cuda", {"got barrier with tensors of devices"}}});
}

TEST(BenchCommand, NamesTheProgramForDevices) {
  const TemporaryFolder folder;
  const auto copy = folder / "lockstep";
  std::filesystem::copy(lockstep_program(), copy);
  const auto ended = Launched({copy.string(), "bench", "all_reduce", "--device", "cuda"}).wait();
  EXPECT_NE(ended.code, 0);
  EXPECT_THAT(ended.err, HasSubstr("the program bench_device, which measures tensors of devices, "
                                   "is not in the folder of lockstep"));
}

}  // namespace
}  // namespace lockstep::testing
