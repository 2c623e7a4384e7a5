#pragma once

#include <cstdint>

#include "record/page/report.h"
#include "record/run.h"
#include "tests/matchers.h"
#include "tests/record/page_fault.h"
#include "tests/temporary_folder.h"

namespace lockstep::inline v0_2::record {

/// Of ten steps.
inline Interval interval_of(std::int64_t step, std::vector<RankInterval> ranks) {
  return {.step = step, .steps = 10, .elapsed = 1, .ranks = std::move(ranks)};
}

/// A run's folder, and the page of it.
class Report : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const { folder.write(name, text); }
  /// Two intervals that end at steps 10 and 20.
  void write_intervals(const std::vector<RankInterval>& ranks) const {
    write("intervals.jsonl",
          interval_line(interval_of(10, ranks)) + interval_line(interval_of(20, ranks)));
  }
  std::string content(const char* name) const { return testing::content(folder / name); }
  std::string page() const {
    remarks_ = write_report(folder.path(), folder / "report.html");
    const auto text = content("report.html");
    EXPECT_EQ(lockstep::testing::page_fault(text), "");
    for (const char* outside : {"http:", "https:", "<script", "<link", "url(", "@import", "src="}) {
      EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr(outside)))
          << "the page is to need nothing else";
    }
    return text;
  }

  const lockstep::testing::TemporaryFolder folder;
  mutable std::vector<std::string> remarks_;
};

}  // namespace lockstep::record
