#include "lockstep/run_log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "lockstep/error.h"
#include "tests/ranks.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::run_ranks;
using testing::TemporaryFolder;

std::vector<nlohmann::json> json_lines(const std::filesystem::path& path) {
  std::vector<nlohmann::json> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

std::vector<std::string> event_files(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto name = entry.path().filename().string();
    if (name.starts_with("events.out.tfevents.")) names.push_back(name);
  }
  return names;
}

/// Records two intervals of three steps.
void take_steps(const Group& world, RunLog& log) {
  const at::Tensor values = at::ones({1000});
  for (int step = 0; step < 6; ++step) {
    if (step % 3 == 0) log.begin_interval(step);
    world.all_reduce(values).wait();
    log.scalars(step + 1, {{"loss", 1.0 / (step + 1)}, {"rank", world.rank()}});
    if (step % 3 == 2) log.end_interval(step + 1);
  }
  log.close();
}

TEST(RunLog, HasEveryRanksShareOfEveryInterval) {
  for (const int ranks : {1, 3, 7}) {
    const TemporaryFolder folder;
    const auto place = folder / "a/log";
    run_ranks(ranks, [&](std::shared_ptr<Communicator> communicator) {
      const Group world(std::move(communicator));
      RunLog log(world, {.folder = place.string(), .trace = true, .strategy = "some"});
      EXPECT_TRUE(log.on());
      take_steps(world, log);
      EXPECT_EQ(log.lost(), "");
    });
    const auto metrics = json_lines(place / "metrics.jsonl");
    ASSERT_EQ(metrics.size(), 6U);
    EXPECT_EQ(metrics[5]["step"], 6);
    EXPECT_EQ(metrics[5]["rank"], 0) << "rank 0 alone writes";
    const auto intervals = json_lines(place / "intervals.jsonl");
    ASSERT_EQ(intervals.size(), 2U);
    EXPECT_EQ(intervals[1]["step"], 6);
    EXPECT_EQ(intervals[1]["steps"], 3);
    ASSERT_EQ(intervals[1]["ranks"].size(), static_cast<std::size_t>(ranks));
    for (const auto& rank : intervals[1]["ranks"]) {
      EXPECT_EQ(rank["bytes"], 3 * 4000);
      EXPECT_GE(rank["seconds"], rank["waiting"].get<double>() + rank["working"].get<double>());
    }
    std::ifstream in(place / "trace.json");
    std::vector<int> flights(static_cast<std::size_t>(ranks));
    const auto trace = nlohmann::json::parse(in);
    for (const auto& event : trace.at("traceEvents")) {
      if (event["name"] != "all_reduce" || event["ph"] != "b") continue;
      if (event["args"]["bytes"] == 4000) ++flights.at(event["pid"]);
    }
    EXPECT_THAT(flights, ::testing::Each(6));
    std::ifstream environment(place / "environment.json");
    const auto all = nlohmann::json::parse(environment);
    EXPECT_EQ(all["ranks"], ranks);
    EXPECT_EQ(all["backend"], "host");
    EXPECT_EQ(all["strategy"], "some");
    EXPECT_EQ(all["hosts"].size(), static_cast<std::size_t>(ranks));
    EXPECT_THAT(all["command"][0].get<std::string>(), HasSubstr("test_train"));
    EXPECT_EQ(all["event_files"][0], event_files(place).at(0));
  }
}

TEST(RunLog, ANewRunReplacesAnOldOneAndAResumedOneGoesOn) {
  const TemporaryFolder folder;
  std::ofstream(folder / "events.out.tfevents.1.somebody.else") << "another program's";
  const auto steps = [&](bool kept) {
    run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
      const Group world(std::move(communicator));
      RunLog log(world, {.folder = folder.path().string(), .trace = !kept, .kept = kept});
      take_steps(world, log);
    });
  };
  steps(false);
  steps(false);
  EXPECT_EQ(json_lines(folder / "metrics.jsonl").size(), 6U);
  EXPECT_EQ(event_files(folder.path()).size(), 2U) << "the new one, and what is not ours";
  steps(true);
  EXPECT_EQ(json_lines(folder / "metrics.jsonl").size(), 12U);
  EXPECT_EQ(json_lines(folder / "intervals.jsonl").size(), 4U);
  EXPECT_TRUE(std::filesystem::exists(folder / "trace.json"));
}

TEST(RunLog, WithoutAFolderNothingHappens) {
  run_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    const Group world(std::move(communicator));
    RunLog log(world, {});
    EXPECT_FALSE(log.on());
    log.scalar("x", 1, 1);
    log.begin_interval(0);
    log.end_interval(1);
    log.close();
    EXPECT_THAT(world.statistics(), IsEmpty()) << "nor is anything sent";
    EXPECT_THROW(RunLog(world, {.trace = true}), InvalidArgument);
  });
}

TEST(RunLog, AFolderThatCannotBeWrittenIsEveryRanksError) {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "in the way";
  run_ranks(3, [&](std::shared_ptr<Communicator> communicator) {
    const Group world(std::move(communicator));
    for (const char* const name : {"file", "file/log"}) {
      const auto place = (folder / name).string();
      try {
        RunLog(world, {.folder = place, .trace = true});
        ADD_FAILURE();
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr(place + ": cannot make the folder: "));
        EXPECT_THAT(error.what(), HasSubstr(world.rank() == 0 ? place : "rank 0: " + place));
      }
    }
    RunLog(world, {.folder = (folder / "log").string(), .trace = true});  // the group is usable
  });
}

TEST(RunLog, AFolderIsOneJobsAtATime) {
  const TemporaryFolder folder;
  const auto place = folder.path().string();
  std::ofstream(folder / "metrics.jsonl") << "{\"step\": 1}\n";
  std::ofstream(folder / ".lockstep-log.lock")
      << "run 5f3a on host elsewhere, pid 77, since then\n";
  const int other = ::open((folder / ".lockstep-log.lock").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(other, LOCK_EX | LOCK_NB), 0);
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    const Group world(std::move(communicator));
    for (const bool kept : {false, true}) {
      try {
        RunLog(world, {.folder = place, .kept = kept});
        ADD_FAILURE();
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr(place + ": another job writes to this folder: run 5f3a "
                                                    "on host elsewhere, pid 77, since then. "));
      }
    }
    EXPECT_EQ(json_lines(folder / "metrics.jsonl").size(), 1U) << "the other job's log is lost";
    world.barrier().wait();
    if (world.rank() == 0) ::close(other);
    world.barrier().wait();
    const RunLog log(world, {.folder = place});
    EXPECT_TRUE(log.on());
  });
  EXPECT_FALSE(std::filesystem::exists(folder / ".lockstep-log.lock"));
}

TEST(RunLog, SaysWhatWasLost) {
  const TemporaryFolder folder;
  const auto place = folder / "log";
  std::filesystem::create_directory(place);
  std::filesystem::create_symlink("/dev/full", place / "metrics.jsonl");
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    const Group world(std::move(communicator));
    RunLog log(world, {.folder = place.string(), .trace = true});
    if (world.rank() == 0) std::filesystem::create_directories(place / "trace.json.partial" / "x");
    take_steps(world, log);
    const auto lost = log.lost();
    if (world.rank() == 0) {
      EXPECT_THAT(lost, HasSubstr("log/metrics.jsonl: No space left on device; "));
      EXPECT_THAT(lost, HasSubstr("log/trace.json: cannot write: Is a directory"));
    } else {
      EXPECT_EQ(lost, "");
    }
  });
  EXPECT_EQ(json_lines(place / "intervals.jsonl").size(), 2U) << "the rest is written";
}

TEST(RunLog, TensorBoardReadsItsCurves) {
  const TemporaryFolder folder;
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    const Group world(std::move(communicator));
    RunLog log(world, {.folder = folder.path().string()});
    for (int step = 1; step <= 300; ++step) log.scalar("train/loss", 7 * step, 0.5 / step);
    log.scalar("größe", 1, 1e-3);
  });
  const auto out = folder / "curves.json";
  const int status = std::system(("'" LOCKSTEP_TORCH_PYTHON "' -B '" LOCKSTEP_SOURCE_DIR
                                  "/tests/train/run_log_curves.py' '" +
                                  folder.path().string() + "' >'" + out.string() + "'")
                                     .c_str());
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no tensorboard in " LOCKSTEP_TORCH_PYTHON;
  ASSERT_EQ(status, 0);
  std::ifstream in(out);
  const auto curves = nlohmann::json::parse(in);
  const auto& losses = curves.at("train/loss");
  ASSERT_EQ(losses.size(), 300U);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_EQ(losses[i][0], 7 * (i + 1));
    EXPECT_FLOAT_EQ(losses[i][1], 0.5 / static_cast<double>(i + 1));
  }
  EXPECT_EQ(curves.at("größe").size(), 1U);
}

}  // namespace
}  // namespace lockstep
