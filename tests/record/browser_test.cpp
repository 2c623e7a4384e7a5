#include <cstdlib>

#include "record/folder.h"
#include "record/page/report.h"
#include "record/run.h"
#include "record/scalar.h"
#include "tests/matchers.h"
#include "tests/temporary_folder.h"

namespace lockstep::inline v0_2::record {
namespace {

using namespace testing;

/// A browser without a screen, if there is one on PATH.
std::optional<std::string> browser() {
  for (const char* name : {"chromium-headless-shell", "chromium"}) {
    const std::string search = std::string("command -v ") + name + " >/dev/null 2>&1";
    if (std::system(search.c_str()) == 0) return name;
  }
  return std::nullopt;
}

class Browser : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!browser()) GTEST_SKIP() << "no chromium-headless-shell or chromium on PATH";
  }
  void write(const std::string& name, const std::string& text) const { folder.write(name, text); }
  /// Opens the page by day with a script added to it, in a window of this width. Returns what page
  /// and script, and what it could not do, wrote on the console. The browser knows no home, no
  /// screen and no variable but PATH, and keeps what it writes in the folder.
  std::vector<std::string> console(const std::string& name, const std::string& script,
                                   int width) const {
    write(name, content(folder / name) + "<script>" + script + "</script>");
    const auto home = folder / "browser";
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
        std::to_string(width) + ",1600 --dump-dom \"file://" + (folder / name).string() +
        "\" </dev/null 2>&1 | cat >said'";
    EXPECT_EQ(std::system(command.c_str()), 0) << content(home / "said");
    std::ifstream in(home / "said");
    std::vector<std::string> lines;
    // The rest is the page, and about buses, screens and sound that are not there.
    for (std::string line; std::getline(in, line);)
      if (line.find(":CONSOLE") != line.npos) lines.push_back(line);
    return lines;
  }

  const TemporaryFolder folder;
};

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

  // The script names the element in front at each point. The second curve goes from the upper left
  // to the lower right without a gap. One rank waited for half of its time, the other never.
  EXPECT_THAT(
      console("report.html", R"js(
const all = which => [...document.querySelectorAll(which)];
const colour = (one, part) => getComputedStyle(one)[part];
const curve = all('polyline')[1], area = curve.getBoundingClientRect();
let gaps = 0;
for (let x = 2; x < area.width - 2; ++x) {
  const y = area.height * x / area.width;
  const front = document.elementFromPoint(area.left + x, area.top + y);
  if (colour(front, front === curve ? 'stroke' : 'fill') !== colour(curve, 'stroke')) ++gaps;
}
const bars = {};
for (const bar of all('.bar rect')) {
  const box = bar.getBoundingClientRect(), fill = colour(bar, 'fill');
  const front = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
  if (front === bar) bars[fill] = (bars[fill] || 0) + box.width * box.height;
}
const waiting = bars['rgb(139, 147, 157)'];
console.log(colour(document.body, 'backgroundColor'), colour(document.body, 'color'),
            colour(curve, 'stroke'), gaps, 'gaps', bars['rgb(37, 99, 235)'] / waiting,
            area.width > 300 && area.height > 100 && waiting > 1000 &&
            document.body.innerText.length > 500);)js",
              1200),
      ElementsAre(HasSubstr("rgb(251, 251, 250) rgb(31, 35, 40) rgb(77, 124, 15) 0 gaps 3 true")));
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
  write(host + "/metrics.jsonl", "{\"step\": 1, \"" + host + "_loss\": 123.4}\n");
  write_report(folder.path(), folder / "report.html");
  write_comparison(folder / host, folder.path(), folder / "two.html");
  for (const char* name : {"report.html", "two.html"}) {
    EXPECT_THAT(console(name, R"js(
const count = (which, holds) => [...document.querySelectorAll(which)].filter(holds).length;
const page = document.querySelector('h1').clientWidth;
const is_narrow = chart => chart.getBoundingClientRect().width < page - 100;
console.log(count('.scroll', box => box.scrollWidth > box.clientWidth) + ' of ' +
            count('.scroll', () => true) + ' tables cut, ' +
            count('figure > svg', is_narrow) + ' charts narrow');)js",
                        1100),
                ElementsAre(HasSubstr("0 of 1 tables cut, 0 charts narrow")));
  }
}

}  // namespace
}  // namespace lockstep::record
