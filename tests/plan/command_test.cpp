#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/launch/launched.h"

// The command line itself: `lockstep plan …`, as a user starts it.

namespace lockstep::testing {
namespace {

Ended plan(const std::string& arguments) { return run_in_shell("plan " + arguments); }

std::string printed(const std::string& arguments) {
  const auto ended = plan(arguments);
  EXPECT_EQ(ended.code, 0) << ended.err;
  return ended.out;
}

/// The objects that `lockstep plan --json` prints, one a line.
std::vector<nlohmann::json> rows_of(const std::string& arguments) {
  std::istringstream lines(printed(arguments + " --json"));
  std::vector<nlohmann::json> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::json::parse(line));
  return rows;
}

TEST(PlanCommand, ComparesStrategiesInATable) {
  EXPECT_THAT(
      printed("--nodes 64 --ranks-per-node 32 --link 100gbit --model resnet50 --step-ms 800"),
      AllOf(HasSubstr("resnet50, 25557032 parameters"), HasSubstr("2048 ranks"),
            HasSubstr("strategy")));
  EXPECT_THAT(
      printed("--nodes 100000 --ranks-per-node 4096 --parameters 1000000000000 "
              "--step-ms 1000 --strategy fp32"),
      AllOf(HasSubstr("= 409600000 ranks"), HasSubstr("1000000000000 parameters, batch 1 ")));
}

TEST(PlanCommand, PutsTheFastestFirstAndSaysThatItKnowsNothingOfConvergence) {
  const auto rows = rows_of("--nodes 4 --ranks-per-node 2 --model mlp --step-ms 100");
  EXPECT_EQ(rows.size(), 7u);
  const auto step = [](const nlohmann::json& row) { return row["step_ms"].get<double>(); };
  EXPECT_TRUE(std::ranges::is_sorted(rows, {}, step));
  // Without shapes, a low-rank strategy is left out unless it is asked for.
  EXPECT_THAT(printed("--parameters 1000 --step-ms 1"),
              AllOf(HasSubstr("local_sgd"), Not(HasSubstr("power_sgd"))));
  EXPECT_THAT(printed("--model cnn --shard optimizer"), Not(HasSubstr("fp16")));
  const std::string setting = "--ranks-per-node 1 --model cnn --step-ms 10 --strategy ";
  const std::string caution = "knows nothing of convergence";
  const auto several = printed(setting + "fp32 --strategy local_sgd:8");
  EXPECT_LT(several.find(caution), several.find("local_sgd:8")) << several;
  EXPECT_THAT(printed(setting + "local_sgd:8"), HasSubstr(caution));
  EXPECT_THAT(printed(setting + "fp32"), AllOf(Not(HasSubstr(caution)), HasSubstr("= 1 rank\n")));
}

TEST(PlanCommand, WritesOneObjectALine) {
  const auto rows = rows_of(
      "--nodes 2 --link 10Mbit --latency 0 --parameters 1000000 --step-ms 100 --batch 8 "
      "--overlap 0 --strategy fp32 --strategy local_sgd:2");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["strategy"], "local_sgd:2");
  EXPECT_EQ(rows[1]["strategy"], "fp32");
  EXPECT_EQ(rows[1]["sent_bytes_per_node"], 4e6);
  // 32 Mbit over 9.5 Mbit/s.
  EXPECT_NEAR(rows[1]["network_ms"].get<double>(), 32.0 / 9.5 * 1000, 1e-6);
  EXPECT_EQ(rows[1]["compute_assumed"], false);
}

TEST(PlanCommand, KnowsTheMemoryOfAModel) {
  const std::string model =
      "--ranks-per-node 4 --parameters 1000000 --step-ms 10 --optimizer adam --host-memory 64 ";
  const auto json = [&](const std::string& arguments) {
    return rows_of(model + "--strategy fp32 " + arguments).at(0);
  };
  const auto whole = json("--nodes 2 --other-memory 0");
  EXPECT_EQ(whole["bytes_per_rank"], 16e6);
  EXPECT_EQ(whole["bytes_per_node"], 64e6);
  EXPECT_EQ(whole["largest_parameters"], 1024.0 * 1024 * 1024);
  const auto sharded = json("--nodes 2 --shard optimizer");
  EXPECT_EQ(sharded["bytes_per_rank"], 9e6);
  EXPECT_EQ(sharded["shard"], "optimizer");
  const auto shared = json("--share-memory");
  EXPECT_EQ(shared["bytes_per_node"], 44e6);
  EXPECT_THAT(printed(model + "--share-memory"),
              AllOf(HasSubstr("--share-memory"), HasSubstr("<- chosen")));
  // Gradients of each rank, and one copy of parameters and state on each host.
  EXPECT_EQ(json("--nodes 2 --share-memory")["bytes_per_node"], 28e6);
}

TEST(PlanCommand, TakesCostsFromMeasurements) {
  const TemporaryFolder folder;
  const auto file = (folder.path() / "rows.jsonl").string();
  const auto row = [](int bytes, int microseconds, const char* memory) {
    return R"({"op":"all_reduce","backend":"host","ranks":2,"memory":")" + std::string(memory) +
           R"(","dtype":"float32","bytes":)" + std::to_string(bytes) +
           ",\"time_us\":" + std::to_string(microseconds) + "}\n";
  };
  // 4·S bytes at 1 GB/s.
  std::ofstream(file) << row(1'000'000, 4000, "group") << row(2'000'000, 8000, "group")
                      << row(1'000'000, 1, "private") << row(1024, 100, "group");
  const auto rows = rows_of(
      "--ranks-per-node 2 --parameters 250000 --step-ms 1 --strategy fp32 --measured " + file);
  EXPECT_NEAR(rows.at(0)["memory_ms"].get<double>(), 4, 1e-6);
  std::ofstream(file) << "no JSON\n";
  EXPECT_THAT(plan("--model cnn --measured " + file).err, HasSubstr("line 1: expected a line of"));
  std::ofstream(file).flush();
  EXPECT_THAT(plan("--model cnn --measured " + file).err, HasSubstr("got none"));
}

TEST(PlanCommand, NamesWhatIsWrongWithItsArguments) {
  expect_refused({lockstep_program(), "plan"},
                 {{"", {"--model"}},
                  {"--model resnet51", {"resnet18"}},
                  {"--model cnn --parameters 10 --step-ms 1", {"one of --model and --parameters"}},
                  {"--parameters 10", {"--step-ms"}},
                  {"--parameters 0 --step-ms 1", {"--parameters"}},
                  {"--parameters 10 --step-ms 1 --strategy power_sgd", {"shapes"}},
                  {"--model cnn --nodes 0", {"--nodes"}},
                  {"--model cnn --nodes 100001", {"1 to 100000"}},
                  {"--model cnn --ranks-per-node many", {"--ranks-per-node"}},
                  {"--model cnn --link 100", {"--link"}},
                  {"--model cnn --link 0gbit", {"--link"}},
                  {"--model cnn --latency -1", {"--latency"}},
                  {"--model cnn --latency nan", {"--latency"}},
                  {"--model cnn --memory 0", {"--memory"}},
                  {"--model cnn --measured /nowhere/rows.jsonl", {"cannot be read"}},
                  {"--model cnn --measured /", {"--measured"}},
                  {"--model cnn --step-ms 0", {"--step-ms"}},
                  {"--model cnn --step-ms nan", {"--step-ms"}},
                  {"--model cnn --batch 0", {"--batch"}},
                  {"--model cnn --overlap 1.5", {"--overlap"}},
                  {"--model cnn --shard zero", {"none, optimizer or gradients"}},
                  {"--model cnn --shard optimizer --strategy fp16", {"expected fp32"}},
                  {"--model cnn --share-memory --strategy fp16", {"expected fp32"}},
                  {"--model cnn --share-memory --shard optimizer", {"expected one of the two"}},
                  {"--model cnn --optimizer lamb", {"adamw"}},
                  {"--model cnn --host-memory 0", {"--host-memory"}},
                  {"--model cnn --other-memory -1", {"--other-memory"}},
                  {"--model cnn --strategy adasum", {"depends on the data"}},
                  {"--model cnn --strategy topk:2", {"at most 1"}},
                  {"--model cnn --no-such-flag", {"no-such-flag"}},
                  {"--modle cnn", {"plan: unknown option '--modle', did you mean --model?"}},
                  {"--model cnn --overlpa=1", {"'--overlpa=1', did you mean --overlap?"}}});
}

}  // namespace
}  // namespace lockstep::testing
