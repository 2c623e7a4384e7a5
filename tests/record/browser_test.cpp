#ifdef LOCKSTEP_PNG
#include <png.h>
#endif

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <set>

#include "record/folder.h"
#include "record/page/report.h"
#include "record/run.h"
#include "record/scalar.h"
#include "tests/matchers.h"
#include "tests/temporary_folder.h"

namespace lockstep::inline v0_2::record {
namespace {

using namespace testing;

/// Red, green and blue.
using Pixel = std::array<std::uint8_t, 3>;

/// The result of rendering a page in a browser.
struct Sight {
  std::size_t height = 0;
  std::size_t width = 0;
  std::vector<Pixel> pixels;         ///< row by row
  std::vector<std::string> console;  ///< whatever the page or what it could not do wrote there

  const Pixel& at(std::size_t row, std::size_t column) const {
    return pixels[row * width + column];
  }
};

#ifdef LOCKSTEP_PNG
Sight read_picture(const std::filesystem::path& path) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  Sight sight;
  if (png_image_begin_read_from_file(&image, path.c_str()) != 0) {
    image.format = PNG_FORMAT_RGB;
    sight.height = image.height;
    sight.width = image.width;
    sight.pixels.resize(sight.height * sight.width);
    static_assert(sizeof(Pixel) == 3);
    png_image_finish_read(&image, nullptr, sight.pixels.data(), 0, nullptr);
  }
  const std::string problem = image.message;
  png_image_free(&image);
  if (!problem.empty()) throw std::runtime_error(path.string() + ": " + problem);
  return sight;
}
#else
Sight read_picture(const std::filesystem::path&) {
  throw std::runtime_error("the tests were built without libpng");
}
#endif

/// A browser without a screen, if there is one on PATH.
std::optional<std::string> browser() {
  for (const char* name : {"chromium-headless-shell", "chromium"}) {
    const std::string search = std::string("command -v ") + name + " >/dev/null 2>&1";
    if (std::system(search.c_str()) == 0) return name;
  }
  return std::nullopt;
}

/// Opens the page by day, in a window of this size. The browser knows no home, no screen and no
/// variable but PATH, and keeps what it writes in the folder.
/// Throws: std::runtime_error with what it said where it made no picture.
Sight look_at(const std::filesystem::path& page, const std::filesystem::path& folder,
              std::size_t height, std::size_t width) {
  const auto home = folder / "browser";
  const auto picture = home / "picture.png";
  std::filesystem::create_directories(home);
  // Its own sandbox refuses root, and containers have little shared memory. It ends before its
  // children do: the pipe waits for them all.
  const std::string command =
      "cd '" + home.string() +
      "' && exec env -i PATH=\"$PATH\" HOME=. TMPDIR=. timeout -k 5 50 sh -c '" +
      browser().value() +
      " --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-breakpad"
      " --no-first-run --user-data-dir=profile --enable-logging=stderr --v=0 --hide-scrollbars"
      " --force-color-profile=srgb --window-size=" +
      std::to_string(width) + "," + std::to_string(height) + " --screenshot=picture.png \"file://" +
      page.string() + "\" </dev/null 2>&1 | cat >said'";
  const int status = std::system(command.c_str());
  std::ifstream in(home / "said");
  std::string all;
  std::vector<std::string> console;
  for (std::string line; std::getline(in, line); all += line + '\n') {
    // The rest is about buses, screens and sound that are not there.
    if (line.find(":CONSOLE") != line.npos) console.push_back(line);
  }
  if (status != 0 || !std::filesystem::exists(picture)) {
    throw std::runtime_error(browser().value() + " ended with " + std::to_string(status) + ":\n" +
                             all);
  }
  auto sight = read_picture(picture);
  sight.console = std::move(console);
  return sight;
}

class Browser : public ::testing::Test {
 protected:
  void SetUp() override {
#ifndef LOCKSTEP_PNG
    GTEST_SKIP() << "built without libpng";
#endif
    if (!browser()) GTEST_SKIP() << "no chromium-headless-shell or chromium on PATH";
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder / name, std::ios::binary) << text;
  }
  Sight look(const std::string& name, std::size_t width = 1200) const {
    return look_at(folder / name, folder.path(), 1600, width);
  }

  const TemporaryFolder folder;
};

/// As page.cpp has them, by day.
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
