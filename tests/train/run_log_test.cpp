#include "lockstep/run_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/prefetch_loader.h"
#include "lockstep/samplers.h"
#include "tests/file_limit.h"
#include "tests/groups.h"
#include "tests/matchers.h"
#include "tests/python.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace lockstep::testing {
namespace {

std::vector<nlohmann::json> json_lines(const std::filesystem::path& path) {
  std::vector<nlohmann::json> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

std::vector<std::string> event_files(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (const auto name = entry.path().filename().string();
        name.starts_with("events.out.tfevents."))
      names.push_back(name);
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
    run_groups(ranks, [&](const Group& world) {
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
    std::vector<int> flights(static_cast<std::size_t>(ranks));
    const auto trace = nlohmann::json::parse(content(place / "trace.json"));
    for (const auto& event : trace.at("traceEvents")) {
      if (event["name"] != "all_reduce" || event["ph"] != "b") continue;
      if (event["args"]["bytes"] == 4000) ++flights.at(event["pid"]);
    }
    EXPECT_THAT(flights, Each(6));
    const auto all = nlohmann::json::parse(content(place / "environment.json"));
    EXPECT_EQ(all["ranks"], ranks);
    EXPECT_EQ(all["backend"], "host");
    EXPECT_EQ(all["strategy"], "some");
    EXPECT_EQ(all["hosts"].size(), static_cast<std::size_t>(ranks));
    EXPECT_THAT(all["command"][0].get<std::string>(), HasSubstr("test_train"));
    EXPECT_EQ(all["event_files"][0], event_files(place).at(0));
  }
}

/// Runs a part of a program: opens the log, and records steps first + 1 to last in intervals of two
/// steps. Every loss is 100 * part + step.
void record_part(const std::filesystem::path& folder, int part, int first, int last,
                 bool with_intervals = true, bool overwrite = false) {
  run_groups(2, [&](const Group& world) {
    RunLog log(world, {.folder = folder.string(), .overwrite = overwrite});
    for (int step = first; step < last; ++step) {
      if (with_intervals && (step - first) % 2 == 0) log.begin_interval(step);
      log.scalar("loss", step + 1, 100.0 * part + step + 1);
      if (with_intervals && (step - first) % 2 == 1) log.end_interval(step + 1, 32);
    }
    EXPECT_EQ(log.lost(), "");
  });
}

std::vector<int> numbers_in(const std::filesystem::path& file, const char* name) {
  std::vector<int> values;
  for (const auto& line : json_lines(file)) {
    if (line.contains(name)) values.push_back(line[name]);
  }
  return values;
}

// The program of docs/run-log.md, killed and started again. Its checkpoint was that of step 4.
TEST(RunLog, IsContinuedAndDiscardsTheStepsAfterTheCheckpoint) {
  for (const auto& [last, with_intervals] : {std::pair(4, true), {6, true}, {6, false}}) {
    const TemporaryFolder folder;
    record_part(folder.path(), 1, 0, last, with_intervals);
    record_part(folder.path(), 2, 4, 8, with_intervals);
    EXPECT_THAT(numbers_in(folder / "metrics.jsonl", "loss"),
                ElementsAre(101, 102, 103, 104, 205, 206, 207, 208));
    double before = 0;
    for (const auto& line : json_lines(folder / "metrics.jsonl")) {
      EXPECT_GT(line["elapsed"], before) << "time goes on";
      EXPECT_GT(line["wall_time"], 1.7e9);
      before = line["elapsed"];
    }
    EXPECT_EQ(event_files(folder.path()).size(), 2U) << "a part of one process and second, too";
    if (with_intervals) {
      EXPECT_THAT(numbers_in(folder / "intervals.jsonl", "step"), ElementsAre(2, 4, 6, 8));
      const auto interval = json_lines(folder / "intervals.jsonl").back();
      EXPECT_EQ(interval["ranks"][1]["samples"], 32);
    }
    EXPECT_EQ(std::filesystem::exists(folder / "discarded.jsonl"), last > 4);
    if (last == 4) continue;
    EXPECT_THAT(numbers_in(folder / "discarded.jsonl", "loss"), ElementsAre(105, 106));
    if (!with_intervals) continue;
    const auto discarded = json_lines(folder / "discarded.jsonl");
    ASSERT_EQ(discarded.size(), 5U) << "a heading for each of the two files";
    EXPECT_EQ(discarded[0]["discarded_from"], "metrics.jsonl");
    EXPECT_EQ(discarded[0]["continued_at_step"], 4);
    EXPECT_EQ(discarded[3]["discarded_from"], "intervals.jsonl");
  }
  // Values of the checkpoint's step stay.
  const TemporaryFolder folder;
  record_part(folder.path(), 1, 0, 6);
  run_groups(1, [&](const Group& world) {
    RunLog log(world, {.folder = folder.path().string()});
    log.scalar("test_loss", 4, 204);  // the model is evaluated before the training goes on
    log.begin_interval(4);
    log.scalar("loss", 5, 205);
    log.end_interval(5);
  });
  EXPECT_THAT(numbers_in(folder / "metrics.jsonl", "loss"), ElementsAre(101, 102, 103, 104, 205));
  EXPECT_THAT(numbers_in(folder / "metrics.jsonl", "test_loss"), ElementsAre(204));
  EXPECT_THAT(numbers_in(folder / "intervals.jsonl", "step"), ElementsAre(2, 4, 5));
}

TEST(RunLog, ARunFromTheFirstStepOnOrWithOverwriteKeepsNothing) {
  for (const bool overwrite : {false, true}) {
    const TemporaryFolder folder;
    std::ofstream(folder / "events.out.tfevents.1.somebody.else") << "another program's";
    std::ofstream(folder / "trace.json") << "old";
    record_part(folder.path(), 1, 0, 4);
    if (overwrite) record_part(folder.path(), 3, 2, 4);
    const int first = overwrite ? 2 : 0;
    record_part(folder.path(), 2, first, first + 2, true, overwrite);
    EXPECT_THAT(numbers_in(folder / "metrics.jsonl", "loss"),
                ElementsAre(201 + first, 202 + first));
    EXPECT_THAT(numbers_in(folder / "intervals.jsonl", "step"), ElementsAre(first + 2));
    EXPECT_EQ(event_files(folder.path()).size(), 2U) << "the new one, and what is not ours";
    if (!overwrite) {
      EXPECT_THAT(numbers_in(folder / "discarded.jsonl", "loss"), ElementsAre(101, 102, 103, 104));
    }
    for (const char* name : {"discarded.jsonl", "trace.json"})
      EXPECT_EQ(std::filesystem::exists(folder / name), !overwrite) << name;
  }
}

/// A dataset that is quick to read.
struct Numbers {
  using BatchType = std::size_t;
  BatchType get_batch(c10::ArrayRef<std::size_t> indices) const { return indices.size(); }
};

TEST(RunLog, CountsTheTimeOfALoader) {
  const TemporaryFolder folder;
  run_groups(2, [&](const Group& world) {
    RunLog log(world, {.folder = folder.path().string()});
    DistributedSampler sampler(64, world);
    PrefetchLoader loader(Numbers(), sampler, {.batch_size = 4, .workers = 1});
    log.begin_interval(0);
    std::int64_t samples = 0;
    // Rank 1 does not read.
    if (world.rank() == 0) {
      for (const auto& batch : loader) samples += static_cast<std::int64_t>(batch);
    }
    log.end_interval(8, samples);
  });
  const auto interval = json_lines(folder / "intervals.jsonl").at(0);
  EXPECT_EQ(interval["ranks"][0]["samples"], 32);
  EXPECT_GT(interval["ranks"][0]["loading"], 0.0);
  EXPECT_LT(interval["ranks"][0]["loading"], interval["ranks"][0]["seconds"].get<double>());
  EXPECT_FALSE(interval["ranks"][1].contains("loading"));
  EXPECT_FALSE(interval["ranks"][1].contains("samples"));
}

// Training goes on where the lines of an earlier part cannot be moved, and nothing of them is lost.
TEST(RunLog, KeepsWhatItCannotMoveAndDoesNothingWithoutAFolder) {
  const TemporaryFolder folder;
  record_part(folder.path(), 1, 0, 4);
  std::filesystem::create_directory(folder / "discarded.jsonl");
  run_groups(1, [&](const Group& world) {
    RunLog log(world, {.folder = folder.path().string()});
    log.scalar("loss", 3, 203);
    EXPECT_THAT(log.lost(), HasSubstr("discarded.jsonl: cannot write: Is a directory"));
  });
  EXPECT_THAT(numbers_in(folder / "metrics.jsonl", "loss"), ElementsAre(101, 102, 103, 104, 203));
  run_groups(2, [](const Group& world) {
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
  run_groups(3, [&](const Group& world) {
    for (const char* const name : {"file", "file/log"}) {
      const auto place = (folder / name).string();
      EXPECT_THAT(message_of<Error>([&] { RunLog(world, {.folder = place, .trace = true}); }),
                  HasSubstr((world.rank() == 0 ? place : "rank 0: " + place) +
                            ": cannot make the folder: "));
    }
    RunLog(world, {.folder = (folder / "log").string(), .trace = true});  // the group is usable
  });
  // A log follows no link.
  run_groups(1, [&](const Group& world) {
    for (const std::string name : {"metrics.jsonl", "intervals.jsonl", "environment.json"}) {
      std::filesystem::create_symlink("precious", folder / name);
      EXPECT_THAT(message_of<Error>([&] {
                    RunLog(world, {.folder = folder.path().string(), .overwrite = true});
                  }),
                  HasSubstr(name + ": cannot write: it is a symbolic link to pre"));
      std::filesystem::remove(folder / name);
    }
  });
  EXPECT_FALSE(std::filesystem::exists(folder / "precious"));
}

TEST(RunLog, AFolderIsOneJobsAtATime) {
  const TemporaryFolder folder;
  const auto place = folder.path().string();
  std::ofstream(folder / "metrics.jsonl") << "{\"step\": 1}\n";
  std::ofstream(folder / ".lockstep-log.lock")
      << "run 5f3a on host elsewhere, pid 77, since then\n";
  const int other = ::open((folder / ".lockstep-log.lock").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(other, LOCK_EX | LOCK_NB), 0);
  run_groups(2, [&](const Group& world) {
    for (const bool overwrite : {false, true}) {
      EXPECT_THAT(
          message_of<Error>([&] { RunLog(world, {.folder = place, .overwrite = overwrite}); }),
          HasSubstr(place + ": another job writes to this folder: run 5f3a on host "
                            "elsewhere, pid 77, since then. "));
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
  std::ofstream(place / "metrics.jsonl") << std::string(1 << 20, ' ') << '\n';
  run_groups(2, [&](const Group& world) {
    std::optional<FileLimit> full;
    if (world.rank() == 0) full.emplace(1 << 20);
    RunLog log(world, {.folder = place.string(), .trace = true});
    if (world.rank() == 0) std::filesystem::create_directories(place / ".trace.json.partial" / "x");
    take_steps(world, log);
    const auto lost = log.lost();
    if (world.rank() == 0) {
      EXPECT_THAT(lost, HasSubstr("log/metrics.jsonl: File too large; "));
      EXPECT_THAT(lost, HasSubstr("log/trace.json: cannot create the file: Is a directory"));
    } else {
      EXPECT_EQ(lost, "");
    }
  });
  EXPECT_EQ(json_lines(place / "intervals.jsonl").size(), 2U) << "the rest is written";
}

/// The curves that TensorBoard finds in a folder: {name: [[step, value], …]}. Nothing where there
/// is no TensorBoard.
std::optional<nlohmann::json> tensorboard_curves(const std::filesystem::path& folder) {
  const Answer answer = python("tests/train/run_log_curves.py", {folder.string()});
  if (answer.is_missing()) return std::nullopt;
  EXPECT_EQ(answer.code, 0);
  return nlohmann::json::parse(answer.text);
}

TEST(RunLog, TensorBoardReadsItsCurves) {
  const TemporaryFolder folder;
  run_groups(1, [&](const Group& world) {
    RunLog log(world, {.folder = (folder / "one").string()});
    for (int step = 1; step <= 300; ++step) log.scalar("train/loss", 7 * step, 0.5 / step);
    log.scalar("größe", 1, 1e-3);
  });
  const auto curves = tensorboard_curves(folder / "one");
  if (!curves) GTEST_SKIP() << "no tensorboard in " LOCKSTEP_TORCH_PYTHON;
  const auto& losses = curves->at("train/loss");
  ASSERT_EQ(losses.size(), 300U);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_EQ(losses[i][0], 7 * (i + 1));
    EXPECT_FLOAT_EQ(losses[i][1], 0.5 / static_cast<double>(i + 1));
  }
  EXPECT_EQ(curves->at("größe").size(), 1U);
  // Each step of a continued run, once.
  record_part(folder / "two", 1, 0, 6);
  record_part(folder / "two", 2, 4, 8);
  const auto continued = tensorboard_curves(folder / "two").value();
  std::vector<int> values;
  for (const auto& point : continued.at("loss")) values.push_back(point[1]);
  EXPECT_THAT(values, ElementsAre(101, 102, 103, 104, 205, 206, 207, 208));
}

}  // namespace
}  // namespace lockstep::testing
