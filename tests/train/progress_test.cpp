#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <sstream>
#include <string>

#include "lockstep/error.h"
#include "lockstep/run_log.h"
#include "tests/groups.h"
#include "tests/matchers.h"

namespace lockstep::testing {
namespace {

TEST(ProgressText, ShowsShareRateAndTimeLeft) {
  EXPECT_EQ(progress_text("epoch 1", 2500, 10000, 5, "images"),
            "epoch 1 [####............]  25%  2500/10000  500 images/s  0:15 left");
  EXPECT_EQ(progress_text("epoch 1", 10000, 10000, 100, "images"),
            "epoch 1 [################] 100%  10000/10000  100 images/s  0:00 left");
  EXPECT_THAT(progress_text("x", 1, 100, 60, "images"), HasSubstr("1:39:00 left"));
}

TEST(ProgressText, HasNoRateBeforeTheFirstSample) {
  EXPECT_EQ(progress_text("x", 0, 10, 0, "images"), "x [................]   0%  0/10");
  EXPECT_EQ(progress_text("x", 0, 0, 1, "images"), "x [################] 100%  0/0");
}

TEST(ProgressText, StaysWithinItsBarWhenThereIsMoreThanExpected) {
  EXPECT_THAT(progress_text("x", 30, 10, 1, "images"), HasSubstr("[################] 100%"));
}

TEST(ProgressText, FitsATerminalOfEightyColumns) {
  EXPECT_LT(progress_text("epoch 100/100", 59999, 60000, 3, "images").size(), 80u);
  EXPECT_LT(progress_text("epoch 100/100", 59999, 60000, 3, "images", "loss 0.1234").size(), 80u);
}

TEST(ProgressText, ShowsANoteInPlaceOfTheCount) {
  EXPECT_EQ(progress_text("epoch 1", 2500, 10000, 5, "images", "loss 0.1234"),
            "epoch 1 [####............]  25%  loss 0.1234  500 images/s  0:15 left");
}

TEST(Progress, ABarIsDrawnOverItselfAndGivesWayToALine) {
  std::ostringstream out;
  Progress progress(out, ProgressStyle::bar, "epoch 1", 4, "images");
  progress.advance(1);
  EXPECT_THAT(out.str(), HasSubstr("\repoch 1 ["));
  EXPECT_THAT(out.str(), Not(HasSubstr("\n")));
  progress.finish("done");
  EXPECT_TRUE(out.str().ends_with("\r\x1b[Kdone\n")) << out.str();
  const std::size_t size = out.str().size();
  progress.advance(3);
  EXPECT_EQ(out.str().size(), size) << "nothing comes after the line";
}

TEST(Progress, AnAbandonedBarIsRemoved) {
  std::ostringstream out;
  { Progress(out, ProgressStyle::bar, "x", 4, "images").advance(1); }
  EXPECT_TRUE(out.str().ends_with("\r\x1b[K")) << out.str();
}

TEST(Progress, ABarThatIsTooWideIsCutByTheTerminal) {
  std::ostringstream out;
  Progress progress(out, ProgressStyle::bar, "x", 4, "images");
  progress.advance(1);
  EXPECT_TRUE(out.str().starts_with("\x1b[?7l\rx [")) << out.str();
  EXPECT_TRUE(out.str().ends_with("\x1b[K\x1b[?7h")) << out.str();
}

TEST(Progress, ABarShowsTheNoteAndIsDrawnTenTimesASecondAtMost) {
  std::ostringstream out;
  int asked = 0;
  const auto note = [&] { return "loss " + std::to_string(++asked); };
  Progress progress(out, ProgressStyle::bar, "x", 1000, "images");
  const auto begin = Progress::Clock::now();
  for (int i = 0; i < 1000; ++i) progress.advance(1, note);
  const std::chrono::duration<double> seconds = Progress::Clock::now() - begin;
  EXPECT_THAT(out.str(), HasSubstr("%  loss 1"));
  EXPECT_LE(asked, 2 + 10 * seconds.count());
  Progress lines(out, ProgressStyle::lines, "x", 4, "images");
  lines.advance(1, [&]() -> std::string { throw Error("nobody sees this note"); });
}

TEST(Progress, ABarIsColouredUnlessTheUserRefusesColours) {
  for (const bool refused : {false, true}) {
    refused ? ::setenv("NO_COLOR", "1", 1) : ::unsetenv("NO_COLOR");
    std::ostringstream out;
    Progress progress(out, ProgressStyle::bar, "x", 4, "images");
    progress.advance(2);
    EXPECT_THAT(out.str(), HasSubstr(refused ? "x [########........]"
                                             : "x [\x1b[36m########\x1b[0m........]"));
  }
  ::unsetenv("NO_COLOR");
}

TEST(Progress, WithoutATerminalAPassIsOneLine) {
  std::ostringstream out;
  for (const char* const line : {"epoch 1 done", "epoch 2 done"}) {
    Progress progress(out, ProgressStyle::lines, "x", 4, "images");
    for (int i = 0; i < 4; ++i) progress.advance(1);
    progress.finish(line);
  }
  { Progress(out, ProgressStyle::lines, "x", 4, "images").advance(1); }
  EXPECT_EQ(out.str(), "epoch 1 done\nepoch 2 done\n");
}

TEST(Progress, SilenceIsSilent) {
  std::ostringstream out;
  Progress progress(out, ProgressStyle::silent, "x", 4, "images");
  progress.advance(4);
  progress.finish("done");
  EXPECT_EQ(out.str(), "");
}

TEST(ProgressStyle, SuitsRankAndStream) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
  const winsize size{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(ioctl(terminal, TIOCSWINSZ, &size), 0);
  const int of_mpirun = posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(of_mpirun, 0);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ::setenv("TERM", "xterm", 1);
  run_groups(2, [&](const Group& group) {
    const bool first = group.rank() == 0;
    EXPECT_EQ(progress_style(group, terminal), first ? ProgressStyle::bar : ProgressStyle::silent);
    EXPECT_EQ(progress_style(group, of_mpirun),
              first ? ProgressStyle::lines : ProgressStyle::silent);
    EXPECT_EQ(progress_style(group, ends[1]), first ? ProgressStyle::lines : ProgressStyle::silent);
    EXPECT_EQ(progress_style(group, terminal, true), ProgressStyle::silent);
  });
  ::setenv("TERM", "dumb", 1);
  run_groups(1, [&](const Group& group) {
    EXPECT_EQ(progress_style(group, terminal), ProgressStyle::lines);
  });
  close(terminal);
  close(of_mpirun);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace lockstep::testing
