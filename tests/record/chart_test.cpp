#include "record/page/chart.h"

#include <cmath>
#include <string>
#include <utility>

#include "record/page/page.h"
#include "tests/matchers.h"

namespace lockstep::inline v0_2::record {
namespace {

using namespace testing;

TEST(Ticks, AreRoundAndFew) {
  EXPECT_THAT(ticks(0, 10), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(ticks(-3, 1), ElementsAre(-3, -2, -1, 0, 1));
  for (const auto& [low, high] :
       {std::pair(0.0, 1e-30), std::pair(-1e30, 1e30), std::pair(0.9, 0.95)}) {
    const auto found = ticks(low, high);
    EXPECT_GE(found.size(), 3U);
    EXPECT_LE(found.size(), 7U);
    for (const double tick : found) {
      EXPECT_GE(tick, low - 1e-9 * (high - low));
      EXPECT_LE(tick, high + 1e-9 * (high - low));
    }
  }
  // Those of a logarithmic axis are powers of ten.
  EXPECT_THAT(log_ticks(0.0015, 3), ElementsAre(0.01, 0.1, 1));
  EXPECT_THAT(log_ticks(0.3, 4), ElementsAre(0.5, 1, 2));
  EXPECT_THAT(log_ticks(1e-300, 1e300), SizeIs(AllOf(Ge(3U), Le(7U))));
}

TEST(Smoothed, IsAMeanOfTheValuesAround) {
  Curve curve;
  for (int i = 0; i < 1000; ++i) curve[i] = 5 + (i % 2 == 0 ? 1 : -1);
  const auto mean = smoothed(curve, 50);
  ASSERT_EQ(mean.size(), curve.size());
  for (int i = 0; i < 1000; ++i) EXPECT_NEAR(mean.at(i), 5, 0.05) << i;
  Curve line;
  for (int i = 0; i < 1000; ++i) line[i] = i;
  EXPECT_NEAR(smoothed(line, 50).at(500), 500, 1e-6) << "lags";
  const auto level = smoothed({{0, 3}, {1, 3}, {2, 3}}, 10);
  for (const auto& [step, value] : level) EXPECT_NEAR(value, 3, 1e-12) << step;
  const auto gap = smoothed({{0, 1}, {1, NAN}, {2, 7}}, 10);
  EXPECT_TRUE(std::isnan(gap.at(1)));
  EXPECT_EQ(gap.at(0), 1) << "nothing from behind the gap";
  EXPECT_EQ(gap.at(2), 7) << "nothing from before the gap";
  EXPECT_EQ(smoothing_of(gap), 0U);
  EXPECT_EQ(smoothing_of(curve), 40U);
  Curve steady;
  for (int i = 0; i < 1000; ++i) steady[i] = std::cos(i / 1000.0);
  EXPECT_EQ(smoothing_of(steady), 0U) << "there is no noise";
}

TEST(Thinned, KeepsPeaksGapsAndEnds) {
  Curve curve;
  for (int i = 0; i < 100000; ++i) curve[i] = std::sin(i);
  curve[31415] = 50;
  curve[27182] = -50;
  curve[5007] = NAN;
  curve[31000] = NAN;  // the first point of the stretch that has 31415
  const auto kept = thinned(curve, 800);
  EXPECT_LE(kept.size(), 801U);
  EXPECT_EQ(kept.at(31415), 50);
  EXPECT_EQ(kept.at(27182), -50);
  EXPECT_TRUE(std::isnan(kept.at(5007)));
  EXPECT_EQ(kept.begin()->first, 0);
  EXPECT_EQ(kept.rbegin()->first, 99999);
  EXPECT_EQ(thinned(kept, 1000).size(), kept.size()) << "few enough already";
}

TEST(LineChart, HasFiniteCoordinatesAndALogAxisForPositiveValuesOfMoreThanADecade) {
  const auto chart = [](const Curve& curve, Axis axis) {
    return line_chart("loss", {{.name = "loss", .curve = curve, .colour = "red"}}, axis);
  };
  for (const Curve& large :
       {Curve{{-9'000'000'000'000'000, 1e307}}, Curve{{1, -1e307}, {2, 1e307}}})
    EXPECT_THAT(chart(large, Axis::linear), Not(AnyOf(HasSubstr("inf"), HasSubstr("nan"))));
  const Curve wide{{1, 10}, {2, 1}, {3, 0.1}, {4, NAN}};
  EXPECT_THAT(chart(wide, Axis::logarithmic),
              AllOf(HasSubstr("logarithmic axis"), HasSubstr("loss at step 3: 0.1<"),
                    HasSubstr("points=\"0.00,0.00 33.33,50.00 66.67,100.00\"")));
  EXPECT_THAT(chart(wide, Axis::linear), Not(HasSubstr("logarithmic")));
  for (const double least : {1.0, 0.0, -1.0, 20.0}) {
    const auto text = chart({{1, 10}, {2, least}}, Axis::logarithmic);
    EXPECT_THAT(text, Not(HasSubstr("logarithmic"))) << least;
  }
  Curve noisy;  // on a linear axis the fall hides the noise
  for (int i = 0; i < 300; ++i) noisy[i] = std::exp(-i / 30.0) * (i % 2 == 0 ? 1 : 3);
  EXPECT_THAT(chart(noisy, Axis::logarithmic),
              AllOf(HasSubstr("class=\"curve raw\""), HasSubstr("class=\"curve\""),
                    HasSubstr("strong: mean of about 12 values")));
}

TEST(Markup, IsSafe) {
  EXPECT_EQ(escaped("a<b & \"c\">"), "a&lt;b &amp; &quot;c&quot;&gt;");
  EXPECT_EQ(escaped("µ → 𝄞"), "µ → 𝄞");
  EXPECT_EQ(escaped("\x01\xff\xc3(\xe2\x82\xed\xa0\x80"
                    "x"),
            "??"
            "?(?????x");
  EXPECT_EQ(number_text(0.012345), "0.01235");
  EXPECT_EQ(number_text(123456), "123456");
  EXPECT_EQ(bytes_text(1724500), "1.72 MB");
  EXPECT_EQ(bytes_text(0), "0 B");
}

TEST(Template, HasTextsListsAndSections) {
  Values page{{"title", "a<b"}, {"markup", "<b/>"}, {"shown", "yes"}, {"hidden", ""}};
  page.lists["rows"] = {{{"name", "1"}}, {{"name", "2"}, {"title", "own"}}};
  page.lists["none"] = {};
  const auto* text =
      "{{title}} {{&markup}} {{missing}}{{?shown}}s{{/?shown}}{{?hidden}}h{{/?hidden}}\n"
      "{{?rows}}\n<{{#rows}}{{name}} {{title}},{{/#rows}}>\n{{/?rows}}\n"
      "{{?none}}\nnone\n{{/?none}}\nend\n";
  EXPECT_EQ(filled(text, page), "a&lt;b <b/> s\n<1 a&lt;b,2 own,>\nend\n");
  EXPECT_EQ(filled("{{title}}", {{"title", "{{title}}"}}), "{{title}}")
      << "values are no templates";
}

}  // namespace
}  // namespace lockstep::record
