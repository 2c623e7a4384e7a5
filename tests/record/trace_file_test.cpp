#include "record/trace_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/temporary_folder.h"

namespace lockstep::inline v0_2::record {
namespace {

using testing::TemporaryFolder;
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

}  // namespace
}  // namespace lockstep::record
