#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "record/page/report.h"
#include "record/run.h"
#include "record/scalar.h"
#include "record/trace_file.h"
#include "tests/matchers.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

// The formats of the files that a run writes, and the CSV that is made of them.

namespace lockstep::inline v0_2::record {
namespace {

using namespace testing;

// RunLog.TensorBoardReadsItsCurves reads the files of events.

TEST(MetricsLine, IsOneObject) {
  const auto line = metrics_line(7, 0.25, std::vector<Scalar>{{"loss", 0.1}, {"a \"b\"", NAN}});
  EXPECT_EQ(line, "{\"step\":7,\"elapsed\":0.25,\"loss\":0.1,\"a \\\"b\\\"\":null}\n");
  EXPECT_TRUE(nlohmann::json::accept(metrics_line(0, 0, std::vector<Scalar>{{"\xff", 1}})));
}

TEST(IntervalLine, IsReadAsItWasWritten) {
  const Interval interval{
      .step = 20,
      .steps = 10,
      .elapsed = 3.5,
      .ranks = {{.seconds = 2, .waiting = 0.5, .working = 0.25, .bytes = 1ULL << 40},
                {.seconds = 2.5, .dense_bytes = 9}}};
  const auto read = parse_interval(interval_line(interval));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->step, 20);
  EXPECT_EQ(read->steps, 10);
  EXPECT_EQ(read->elapsed, 3.5);
  ASSERT_EQ(read->ranks.size(), 2U);
  EXPECT_EQ(read->ranks[0].bytes, 1ULL << 40);
  EXPECT_EQ(read->ranks[0].computing(), 1.25);
  EXPECT_EQ(read->ranks[1].dense_bytes, 9U);
  for (const char* text : {"", "{", "[]", "{\"step\": 1}", "{\"step\": \"x\", \"steps\": 1}"}) {
    EXPECT_FALSE(parse_interval(text)) << text;
  }
}

using Kind = TraceSpan::Kind;

TraceSpan span(Kind kind, std::int64_t begin, std::int64_t end, int bucket = -1) {
  return {.begin = begin,
          .end = end,
          .bytes = 8,
          .bucket = bucket,
          .kind = kind,
          .collective = Collective::all_reduce};
}

/// The activity of a rank at a moment, found by looking at every nanosecond.
char at(const std::vector<TraceSpan>& spans, std::int64_t time) {
  char found = 'c';
  for (const auto& one : spans) {
    if (time < one.begin || time >= one.end) continue;
    if (one.kind == Kind::working) return 'w';
    if (one.kind == Kind::waiting) found = 'i';
  }
  return found;
}

TEST(Timeline, IsWhatEveryMomentSays) {
  const std::vector<std::vector<TraceSpan>> cases{
      {},
      {span(Kind::request, 0, 50)},
      {span(Kind::waiting, 10, 40), span(Kind::working, 15, 20), span(Kind::working, 25, 30)},
      {span(Kind::working, 0, 10), span(Kind::waiting, 5, 30), span(Kind::working, 25, 60),
       span(Kind::request, 1, 70)},
      {span(Kind::working, 12, 14), span(Kind::working, 13, 20), span(Kind::waiting, 0, 100),
       span(Kind::waiting, 90, 110), span(Kind::ready, 5, 5, 0)},
      {span(Kind::working, 0, 30), span(Kind::waiting, 10, 20)},
  };
  for (const auto& spans : cases) {
    const auto rows = timeline(spans);
    std::string painted(120, ' ');
    const auto paint = [&](const std::vector<Stretch>& stretches, char letter) {
      for (const auto& [begin, end] : stretches) {
        for (auto time = begin; time < end; ++time) {
          auto& place = painted[static_cast<std::size_t>(time)];
          EXPECT_EQ(place, ' ') << "two things at " << time;
          place = letter;
        }
      }
    };
    paint(rows.computing, 'c');
    paint(rows.waiting, 'i');
    paint(rows.working, 'w');
    std::string expected(120, ' ');
    std::int64_t first = 120;
    std::int64_t last = 0;
    for (const auto& one : spans) {
      first = std::min(first, one.begin);
      last = std::max(last, one.end);
    }
    for (auto time = first; time < last; ++time) {
      expected[static_cast<std::size_t>(time)] = at(spans, time);
    }
    EXPECT_EQ(painted, expected);
  }
}

TEST(TraceFile, IsJsonWithEachRanksRows) {
  const TemporaryFolder folder;
  const auto path = folder / "trace.json";
  TraceFile file(path, 1000);
  file.add(0, "a \"host\"",
           {span(Kind::ready, 2000, 2000, 1), span(Kind::waiting, 3000, 5000, 1),
            span(Kind::request, 2500, 5000, 1), span(Kind::request, 4000, 6000),
            span(Kind::backward, 1500, 7000)},
           0);
  file.add(1, "b", {}, 12);
  EXPECT_FALSE(std::filesystem::exists(path));
  file.commit();

  std::ifstream in(path);
  const auto events = nlohmann::json::parse(in).at("traceEvents");
  std::map<std::string, std::vector<nlohmann::json>> found;
  for (const auto& event : events) {
    const std::string phase = event.at("ph");
    found[phase == "M" ? event["args"].value("name", "") : event.at("name").get<std::string>()]
        .push_back(event);
  }
  EXPECT_EQ(found.count("rank 0 on a \"host\""), 1U);
  EXPECT_EQ(found.count("rank 1 on b, without its first 12 spans"), 1U);
  EXPECT_EQ(found["bucket 1"].size(), 1U);
  EXPECT_EQ(found["ready"].at(0)["ts"], 1.0);
  EXPECT_EQ(found["ready"].at(0)["tid"], found["bucket 1"].at(0)["tid"]);
  const auto flights = found["all_reduce"];
  ASSERT_EQ(flights.size(), 3U);
  EXPECT_EQ(flights[0]["ph"], "X");
  EXPECT_EQ(flights[0]["ts"], 1.5);
  EXPECT_EQ(flights[0]["dur"], 2.5);
  EXPECT_EQ(flights[0]["args"]["bytes"], 8);
  EXPECT_EQ(flights[1]["ph"], "b");
  EXPECT_EQ(flights[2]["ph"], "e");
  EXPECT_EQ(flights[1]["id"], flights[2]["id"]);
  EXPECT_EQ(found["waiting"].size(), 3U);  // the rows' names, and the slice
  EXPECT_EQ(found["backward"].size(), 3U);
}

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

TEST(Csv, IsTheOnlyFormat) {
  check_export_format("csv");
  EXPECT_THAT(message_of<InvalidArgument>([] { check_export_format("wandb"); }),
              AllOf(HasSubstr("got the format 'wandb', expected csv"), HasSubstr("run-log.md")));
}

}  // namespace
}  // namespace lockstep::record
