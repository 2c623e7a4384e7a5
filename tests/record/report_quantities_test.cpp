#include <map>
#include <regex>
#include <tuple>

#include "record/folder.h"
#include "record/scalar.h"
#include "tests/record/report_fixture.h"

namespace lockstep::inline v0_2::record {
namespace {

using namespace testing;

/// The colour of each line of the page's legends, by its name.
std::multimap<std::string, std::string> legend_colours(const std::string& page) {
  std::multimap<std::string, std::string> found;
  const std::regex entry("<i style=\"background: ([^;\"]+)[^>]*></i>([^<0-9]*)");
  for (std::sregex_iterator one(page.begin(), page.end(), entry), end; one != end; ++one) {
    auto name = (*one)[2].str();
    while (name.ends_with(' ')) name.pop_back();
    found.emplace(name, (*one)[1]);
  }
  return found;
}

TEST_F(Report, GivesAQuantityOneColourOnTheWholePage) {
  std::string metrics;
  for (std::int64_t step = 1; step <= 3; ++step) {
    std::vector<Scalar> scalars{{"train_loss", 1.0 / static_cast<double>(step)}};
    for (char name = 'a'; name <= 'z'; ++name) {
      scalars.push_back({std::string(1, name), static_cast<double>(step)});
    }
    metrics += metrics_line(step, 1, scalars);
  }
  write("metrics.jsonl", metrics);
  const RankInterval rank{
      .seconds = 2, .waiting = 0.5, .working = 0.5, .loading = 0.25, .bytes = 9, .samples = 100};
  write_intervals({rank, rank});
  std::map<std::string, std::string> quantities;  // by colour
  for (const auto& [label, colour] : legend_colours(page())) {
    const std::string name = label == "loading data"               ? "loading"
                             : label == "step of the slowest rank" ? "step"
                                                                   : label;
    const auto [known, added] = quantities.emplace(colour, name);
    EXPECT_EQ(known->second, name) << colour << " stands for two quantities";
  }
  // train_loss, a to z, samples/s, the step and its four parts
  EXPECT_EQ(quantities.size(), 1U + 26 + 1 + 5);
}

TEST_F(Report, ShowsSamplesASecondTheBestNumbersAndStepsThatWereComputedAgain) {
  write("metrics.jsonl", metrics_line(10, 1, std::vector<Scalar>{{"images_per_second", 77}}));
  EXPECT_THAT(page(), HasSubstr("<dt>images_per_second</dt><dd>77<small>the last"));
  // 20 steps of 300 samples of both ranks in 10 s of the slower one.
  const RankInterval fast{.seconds = 4, .samples = 1000};
  const RankInterval slow{.seconds = 5, .samples = 2000};
  write_intervals({fast, slow});
  EXPECT_THAT(page(), HasSubstr("<dt>samples/s</dt><dd>600<small>of all ranks"));
  // The first step has no numbers.
  write("metrics.jsonl",
        "{\"step\": 1, \"loss\": null, \"acc\": null}\n{\"step\": 2, \"loss\": 0.5, \"acc\": 0.9}\n"
        "{\"step\": 3, \"loss\": 0.75, \"acc\": 0.8}\n");
  write("discarded.jsonl",
        "{\"discarded_from\":\"metrics.jsonl\",\"continued_at_step\":1}\n"
        "{\"step\": 2, \"loss\": 2}\n{\"step\": 3, \"loss\": 2}\n");
  EXPECT_THAT(page(), AllOf(HasSubstr("<dt>loss</dt><dd>0.75<small>best 0.5 at step 2<"),
                            HasSubstr("<dt>acc</dt><dd>0.8<small>best 0.9 at step 2<"),
                            HasSubstr("discarded.jsonl has 2 records of steps")));
}

TEST_F(Report, SaysHowBytesTravel) {
  write("metrics.jsonl", "");
  const RankInterval rank{.seconds = 2, .bytes = 1000};
  write("intervals.jsonl", interval_line(interval_of(10, {rank, rank})));
  for (const auto& [backend, other_host, through_memory] :
       {std::tuple("host", "one", true), std::tuple("mpi", "one", false),
        std::tuple("hierarchical", "two", false)}) {
    write_environment(folder.path(),
                      {.ranks = 2, .hosts = {"one", other_host}, .backend = backend});
    const auto text = page();
    EXPECT_THAT(text, HasSubstr("<dt>exchanged</dt><dd>100 B<small>a rank and step"));
    EXPECT_EQ(text.find("through shared memory") != text.npos, through_memory) << backend;
    EXPECT_THAT(text, Not(HasSubstr("wire")));
  }
}

TEST_F(Report, HasALogAxisForLossesOnly) {
  write("metrics.jsonl",
        "{\"step\": 1, \"a_loss\": 9, \"acc\": 0.01, \"rate\": 9}\n"
        "{\"step\": 2, \"a_loss\": 0.1, \"acc\": 1, \"rate\": 0.1}\n");
  write("other/metrics.jsonl", "{\"step\": 1, \"a_loss\": 2}\n");
  const auto alone = page();
  write_comparison(folder.path(), folder / "other", folder / "two.html");
  for (const auto& [text, loss, accuracy] :
       {std::tuple(alone, "Loss", "Accuracy"), std::tuple(content("two.html"), "a_loss", "acc")}) {
    EXPECT_THAT(text, HasSubstr(loss + std::string(" <small>logarithmic axis</small>")));
    EXPECT_THAT(text, HasSubstr(accuracy + std::string("</figcaption>")));
    EXPECT_THAT(text, HasSubstr("rate</figcaption>"));
  }
}

}  // namespace
}  // namespace lockstep::record
