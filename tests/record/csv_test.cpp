#include <cmath>
#include <filesystem>
#include <string>
#include <utility>

#include "lockstep/error.h"
#include "record/page/report.h"
#include "tests/matchers.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep::inline v0_2::record {
namespace {

using namespace testing;

Run small_run() {
  Run run;
  run.name = "a \"run\"";
  run.curves = {{"loss", {{1, 0.5}, {2, 0.1}}}, {"x,\"y\"", {{2, NAN}, {3, 4}}}};
  run.moments = {{1, {.elapsed = 1.5, .wall_time = 1000.25}},
                 {2, {.elapsed = 2, .wall_time = 1001}},
                 {3, {.elapsed = 3, .wall_time = {}}}};
  run.environment = {{"strategy", "fp32"}};
  return run;
}

std::string csv_of(const Run& run) {
  const TemporaryFolder folder;
  write_csv(run, folder / "run.csv");
  return testing::content(folder / "run.csv");
}

TEST(Csv, HasARowAStep) {
  EXPECT_EQ(csv_of(small_run()),
            "step,elapsed,wall_time,loss,\"x,\"\"y\"\"\"\r\n"
            "1,1.5,1000.25,0.5,\r\n"
            "2,2,1001,0.1,nan\r\n"
            "3,3,,,4\r\n");
  auto run = small_run();
  run.curves.resize(1);
  run.intervals = {
      {.step = 2, .steps = 2, .ranks = {{.seconds = 1, .waiting = 0.5, .samples = 8}}}};
  EXPECT_THAT(csv_of(run), HasSubstr("loss,interval/step_seconds,interval/compute_seconds,"
                                     "interval/waiting_seconds,interval/samples_per_second\r\n"
                                     "1,1.5,1000.25,0.5,,,,\r\n2,2,1001,0.1,0.5,0.25,0.25,8\r\n"));
  EXPECT_EQ(csv_of({}), "step,elapsed,wall_time\r\n");
}

TEST(Csv, AFileThatCannotBeWrittenLeavesNothing) {
  const TemporaryFolder folder;
  EXPECT_THROW(write_csv({}, folder / "no/such/file"), Error);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Csv, FormatsOfEarlierVersionsAreAnsweredWithTheReplacement) {
  check_export_format("csv");
  for (const auto& known :
       {std::pair("wandb", "wandb sync --sync-tensorboard DIR"),
        std::pair("mlflow", "lines of Python in docs/run-log.md"),
        std::pair("prometheus", "command in docs/run-log.md"), std::pair("yaml", "Name csv.")}) {
    EXPECT_THAT(message_of<InvalidArgument>([&] { check_export_format(known.first); }),
                AllOf(HasSubstr("expected csv"), HasSubstr(known.second)));
  }
}

}  // namespace
}  // namespace lockstep::record
