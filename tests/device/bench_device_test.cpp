#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/device/on_devices.h"
#include "tests/launch/launched.h"

// The program that `lockstep bench --device cuda` starts, on simulated devices.

namespace lockstep::testing {
namespace {

class BenchDevice : public OnSimulation {
 protected:
  void SetUp() override {
    OnSimulation::SetUp();
    if (!std::filesystem::exists(program)) GTEST_SKIP() << "benchmarks are not built";
    if (simulation::device_type() == at::kCUDA) GTEST_SKIP() << "of the simulated device sim";
  }
  static Ended run(const std::string& backend, const std::vector<std::string>& arguments) {
    std::vector<std::string> words{
        "-n",   "2", "env", "LD_PRELOAD=" LOCKSTEP_SIMULATION_LIBRARY, "LOCKSTEP_SIMULATION=1",
        program};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return run_lockstep(words, {{"LOCKSTEP_DEVICE", simulation::type_name()},
                                {"LOCKSTEP_DEVICE_BACKEND", backend},
                                {"LOCKSTEP_NCCL", LOCKSTEP_NCCL_DOUBLE}});
  }
  static inline const std::string program = LOCKSTEP_BINARY_DIR "/bench_device";
};

TEST_F(BenchDevice, MeasuresEachCollective) {
  // The collectives of both backends have tests of their own: here, those that the benchmark names.
  for (const std::string backend : {"nccl", "staged"}) {
    const std::vector<std::string> all{"all_reduce", "broadcast", "all_gather", "reduce_scatter"};
    for (const auto& collective :
         backend == "nccl" ? all : std::vector<std::string>{"all_reduce"}) {
      SCOPED_TRACE(backend + ' ' + collective);
      const auto ended = run(backend, {collective, "--min", "1KiB", "--max", "64KiB", "--factor",
                                       "64", "--repeats", "2", "--op", "avg", "--check", "--json"});
      ASSERT_EQ(ended.code, 0) << ended.err;
      std::istringstream lines(ended.out);
      int rows = 0;
      for (std::string line; std::getline(lines, line); ++rows) {
        const auto row = nlohmann::json::parse(line);
        EXPECT_EQ(row["backend"], backend);
        EXPECT_EQ(row["memory"], "device");
        EXPECT_EQ(row["ranks"], 2);
        EXPECT_EQ(row["wrong"], 0);
        EXPECT_GT(row["time_us"], 0);
      }
      EXPECT_EQ(rows, 2);
    }
  }
}

TEST_F(BenchDevice, RefusesAWorldOnTheCpu) {
  const auto ended = run_lockstep({"-n", "2", "--device", "cpu", program, "all_reduce"});
  EXPECT_NE(ended.code, 0);
  EXPECT_THAT(ended.err,
              HasSubstr("bench_device: got a world on the CPU, expected one on devices"));
}

}  // namespace
}  // namespace lockstep::testing
