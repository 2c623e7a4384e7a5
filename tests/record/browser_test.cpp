#include "tests/record/browser.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "record/folder.h"
#include "record/page/report.h"
#include "record/run.h"
#include "record/scalar.h"
#include "tests/matchers.h"
#include "tests/temporary_folder.h"

namespace lockstep::inline v0_2::record {
namespace {

using namespace testing;

class Browser : public ::testing::Test {
 protected:
  void SetUp() override {
#ifndef LOCKSTEP_PNG
    GTEST_SKIP() << "built without libpng";
#endif
    if (!testing::browser()) GTEST_SKIP() << "no chromium-headless-shell or chromium on PATH";
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder / name, std::ios::binary) << text;
  }
  Sight look(const std::string& name, std::size_t width = 1200) const {
    return testing::look_at(folder / name, folder.path(), 1600, width);
  }

  const TemporaryFolder folder;
};

/// As page_template.cpp has them, by day.
constexpr Pixel page_colour{0xfb, 0xfb, 0xfa};
constexpr Pixel compute_pixel{0x25, 0x63, 0xeb};
constexpr Pixel waiting_pixel{0x8b, 0x93, 0x9d};

/// Of the second quantity of a page, #4d7c0f, and what lies between it and the page's colour.
bool is_second_curve(const Pixel& pixel) {
  return pixel[1] > pixel[2] + 60 && pixel[1] > pixel[0] + 20;
}

bool is_ink(const Pixel& pixel) { return *std::ranges::max_element(pixel) < 0x60; }

TEST_F(Browser, ShowsTheReport) {
  std::string metrics;
  for (std::int64_t step = 0; step <= 10; ++step) {
    const auto t = static_cast<double>(step);
    const std::vector<Scalar> scalars{{"train_loss", 1}, {"test_loss", 2 - t / 10}};
    metrics += metrics_line(step, t, scalars);
  }
  write("metrics.jsonl", metrics);
  const Interval interval{.step = 10,
                          .steps = 10,
                          .elapsed = 2,
                          .ranks = {{.seconds = 2, .waiting = 1}, {.seconds = 2}}};
  write("intervals.jsonl", interval_line(interval));
  write_report(folder.path(), folder / "report.html");

  const auto sight = look("report.html");
  EXPECT_THAT(sight.console, IsEmpty());
  ASSERT_EQ(sight.width, 1200U);
  ASSERT_GE(sight.height, 1000U);
  EXPECT_EQ(sight.at(2, 2), page_colour);
  EXPECT_GT(std::set<Pixel>(sight.pixels.begin(), sight.pixels.end()).size(), 50U);
  EXPECT_GT(std::ranges::count_if(sight.pixels, is_ink), 1000) << "letters";

  // The curve goes from the upper left to the lower right without a gap. Below it, in the legend,
  // its colour appears once more: so the topmost of each column counts.
  std::map<std::size_t, std::size_t> top;
  for (std::size_t row = sight.height; row-- > 0;) {
    for (std::size_t column = 0; column < sight.width; ++column)
      if (is_second_curve(sight.at(row, column))) top[column] = row;
  }
  ASSERT_GT(top.size(), 300U);
  const auto [first, first_row] = *top.begin();
  const auto [last, last_row] = *top.rbegin();
  EXPECT_EQ(top.size(), last - first + 1);
  EXPECT_GT(last_row, first_row + 100);
  for (const auto& [column, row] : top) {
    const double expected =
        static_cast<double>(first_row) + static_cast<double>(last_row - first_row) *
                                             static_cast<double>(column - first) /
                                             static_cast<double>(last - first);
    ASSERT_NEAR(static_cast<double>(row), expected, 6) << "column " << column;
  }

  // One rank waited for half of its time, the other computed all the while.
  const auto waiting = std::ranges::count(sight.pixels, waiting_pixel);
  const auto compute = std::ranges::count(sight.pixels, compute_pixel);
  EXPECT_GT(waiting, 1000);
  EXPECT_NEAR(static_cast<double>(compute) / static_cast<double>(waiting), 3, 0.5);
}

TEST_F(Browser, FitsThePageInAWindowOf1100Pixels) {
  const std::string host = "node-0017.cluster.a-long-name-of-a-university.example.org";
  write_environment(folder.path(), {.ranks = 2, .hosts = {host, "b." + host}});
  write("metrics.jsonl", "{\"step\": 1, \"loss\": 2, \"x\": 1}\n{\"step\": 2, \"x\": 2}\n");
  const RankInterval rank{.seconds = 2,
                          .waiting = 1,
                          .loading = 0.1234,
                          .bytes = 123'456'789,
                          .dense_bytes = 1LL << 40};
  write("intervals.jsonl", interval_line({.step = 1, .steps = 1, .ranks = {rank, rank}}));
  std::filesystem::create_directory(folder / host);
  write(host + "/metrics.jsonl", "{\"step\": 1, \"" + host + "_loss\": 123.4}\n");
  write_report(folder.path(), folder / "report.html");
  write_comparison(folder / host, folder.path(), folder / "two.html");
  for (const char* name : {"report.html", "two.html"}) {
    write(name, testing::content(folder / name) + R"html(<script>
const count = (which, holds) => [...document.querySelectorAll(which)].filter(holds).length;
const page = document.querySelector('h1').clientWidth;
const is_narrow = chart => chart.getBoundingClientRect().width < page - 100;
console.log(count('.scroll', box => box.scrollWidth > box.clientWidth) + ' of ' +
            count('.scroll', () => true) + ' tables cut, ' +
            count('figure > svg', is_narrow) + ' charts narrow');</script>)html");
    EXPECT_THAT(look(name, 1100).console,
                ElementsAre(HasSubstr("0 of 1 tables cut, 0 charts narrow")));
  }
}

}  // namespace
}  // namespace lockstep::record
