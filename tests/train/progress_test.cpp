#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <torch/types.h>
#include <unistd.h>

#include <atomic>
#include <limits>
#include <sstream>
#include <thread>
#include <tuple>

#include "core/system/process.h"
#include "core/system/topology.h"
#include "lockstep/efficiency.h"
#include "lockstep/error.h"
#include "lockstep/metrics.h"
#include "lockstep/run_log.h"
#include "tests/groups.h"
#include "tests/matchers.h"
#include "tests/parallel/models.h"
#include "tests/variable.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

TEST(ProgressText, ShowsShareRateAndTimeLeft) {
  EXPECT_EQ(progress_text("epoch 1", 2500, 10000, 5, "images"),
            "epoch 1 [####............]  25%  2500/10000  500 images/s  0:15 left");
  EXPECT_EQ(progress_text("epoch 1", 10000, 10000, 100, "images"),
            "epoch 1 [################] 100%  10000/10000  100 images/s  0:00 left");
  EXPECT_THAT(progress_text("x", 1, 100, 60, "images"), HasSubstr("1:39:00 left"));
  // No rate before the first sample.
  EXPECT_EQ(progress_text("x", 0, 10, 0, "images"), "x [................]   0%  0/10");
  EXPECT_EQ(progress_text("x", 0, 0, 1, "images"), "x [################] 100%  0/0");
  // More than expected.
  EXPECT_THAT(progress_text("x", 30, 10, 1, "images"), HasSubstr("[################] 100%"));
  // A terminal of 80 columns.
  EXPECT_LT(progress_text("epoch 100/100", 59999, 60000, 3, "images").size(), 80u);
  EXPECT_LT(progress_text("epoch 100/100", 59999, 60000, 3, "images", "loss 0.1234").size(), 80u);
  // A note in place of the count.
  EXPECT_EQ(progress_text("epoch 1", 2500, 10000, 5, "images", "loss 0.1234"),
            "epoch 1 [####............]  25%  loss 0.1234  500 images/s  0:15 left");
}

TEST(Progress, ABarIsDrawnOverItselfAndGivesWayToALineOrNothing) {
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
  out.str("");
  {
    Progress abandoned(out, ProgressStyle::bar, "x", 4, "images");
    abandoned.advance(1);
    EXPECT_TRUE(out.str().starts_with("\x1b[?7l\rx [")) << "a terminal cuts it: " << out.str();
    EXPECT_TRUE(out.str().ends_with("\x1b[K\x1b[?7h")) << out.str();
  }
  EXPECT_TRUE(out.str().ends_with("\r\x1b[K")) << out.str();
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

TEST(Progress, WithoutATerminalAPassIsOneLine) {
  std::ostringstream out;
  for (const char* const line : {"epoch 1 done", "epoch 2 done"}) {
    Progress progress(out, ProgressStyle::lines, "x", 4, "images");
    for (int i = 0; i < 4; ++i) progress.advance(1);
    progress.finish(line);
  }
  { Progress(out, ProgressStyle::lines, "x", 4, "images").advance(1); }
  EXPECT_EQ(out.str(), "epoch 1 done\nepoch 2 done\n");
  Progress progress(out, ProgressStyle::silent, "x", 4, "images");
  progress.advance(4);
  progress.finish("done");
  EXPECT_EQ(out.str(), "epoch 1 done\nepoch 2 done\n");
}

TEST(ProgressStyle, SuitsRankAndStream) {
  const detail::Descriptor terminal(posix_openpt(O_RDWR | O_NOCTTY));
  const winsize size{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(ioctl(terminal.get(), TIOCSWINSZ, &size), 0);
  const detail::Descriptor of_mpirun(posix_openpt(O_RDWR | O_NOCTTY));
  ASSERT_TRUE(of_mpirun);
  const detail::Descriptor file(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  const Variable variable("TERM", "xterm");
  run_groups(2, [&](const Group& group) {
    const auto style = [&](const auto& stream) { return progress_style(group, stream.get()); };
    const bool first = group.rank() == 0;
    EXPECT_EQ(style(terminal), first ? ProgressStyle::bar : ProgressStyle::silent);
    EXPECT_EQ(style(of_mpirun), first ? ProgressStyle::lines : ProgressStyle::silent);
    EXPECT_EQ(style(file), first ? ProgressStyle::lines : ProgressStyle::silent);
    EXPECT_EQ(progress_style(group, terminal.get(), true), ProgressStyle::silent);
  });
  const Variable dumb("TERM", "dumb");
  run_groups(1, [&](const Group& group) {
    EXPECT_EQ(progress_style(group, terminal.get()), ProgressStyle::lines);
  });
}

TEST(Efficiency, IsTheMedianOfTheRoundsWithItsSpread) {
  const std::vector<double> alone{0.009, 0.010, 0.009, 0.0095, 0.009};
  const std::vector<double> together{0.010, 0.010, 0.010, 0.010, 0.010};
  const auto found = efficiency_of(alone, together, 0.02);
  EXPECT_TRUE(found.reliable()) << found.doubt;
  EXPECT_DOUBLE_EQ(found.median, 0.9);
  EXPECT_DOUBLE_EQ(found.least, 0.9);
  EXPECT_DOUBLE_EQ(found.most, 1.0);
  EXPECT_DOUBLE_EQ(found.alone, 0.009);
  EXPECT_DOUBLE_EQ(found.together, 0.010);
  EXPECT_EQ(found.rounds, 5);
  EXPECT_EQ(to_text(found, 2),
            "efficiency 90.0 % (90.0 to 100.0 over 5 rounds): a step takes 9.0 ms on one rank, "
            "10.0 ms on 2");
  EXPECT_DOUBLE_EQ(efficiency_of(std::vector{1.0, 3.0}, std::vector{4.0, 4.0}).median, 0.5);
  EXPECT_THROW(efficiency_of({}, {}), InvalidArgument);
  EXPECT_THROW(efficiency_of(alone, {}), InvalidArgument);
}

TEST(Efficiency, IsNotShownWhereItIsNotReliable) {
  const std::vector<double> one{1, 1, 1};
  const std::tuple<std::vector<double>, double, const char*> cases[] = {
      {one, 0.23, "other programs used 23 % of the processors"},
      {{0.539, 0.9, 1.115}, 0, "the rounds differ too much, from 53.9 to 111.5 %"},
      {{1.1, 1.115, 1.12}, 0, "one rank alone took longer"},
      {{1, std::numeric_limits<double>::infinity(), 1}, 0, "the rounds differ too much"},
  };
  for (const auto& [alone, other_load, doubt] : cases) {
    const auto found = efficiency_of(alone, one, other_load);
    EXPECT_FALSE(found.reliable());
    EXPECT_THAT(found.doubt, HasSubstr(doubt));
    EXPECT_THAT(to_text(found, 2),
                AllOf(HasSubstr("efficiency not measured reliably: " + found.doubt),
                      Not(HasSubstr("a step takes"))));
  }
  EXPECT_TRUE(efficiency_of(one, one, 0.1).reliable());
}

TEST(Efficiency, RankZeroStepsAloneAndAllRanksTogether) {
  constexpr int ranks = 3;
  std::atomic<int> alone_by_others{0};
  run_groups(ranks, [&](const Group& world) {
    int steps = 0;
    const auto found = measure_efficiency(
        world,
        [&] {
          if (world.rank() != 0) ++alone_by_others;
          std::this_thread::sleep_for(2ms);
        },
        [&] {
          ++steps;
          world.barrier().wait();
          std::this_thread::sleep_for(4ms);
        },
        {.rounds = 3, .time = 20ms});
    EXPECT_EQ(found.rounds, 3);
    EXPECT_GT(steps, 3);
    const auto nothing = [] {};
    for (const EfficiencyOptions& bad :
         {EfficiencyOptions{.rounds = 0}, EfficiencyOptions{.time = -1ms}})
      EXPECT_THROW(measure_efficiency(world, nothing, nothing, bad), InvalidArgument);
    EXPECT_GT(found.alone, 0.0019);
    EXPECT_GT(found.together, 0.0039);
    // Every rank has the same.
    const auto own = at::tensor({found.median, static_cast<double>(found.doubt.size())});
    const auto first = own.clone();
    world.broadcast(first).wait();
    EXPECT_TRUE(own.equal(first));
  });
  EXPECT_EQ(alone_by_others, 0);
}

TEST(Efficiency, OtherLoadOfTheProcessorsIsNoticed) {
  if (!detail::ProcessorTime::read(Topology::read().cpus()).busy) {
    GTEST_SKIP() << "this kernel counts no processor time";
  }
  // Threads of a rank's process count as its own, so the load is another process's.
  std::vector<pid_t> others;
  for (unsigned i = 0; i < std::thread::hardware_concurrency(); ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (;;) ::getppid();
    }
    others.push_back(pid);
  }
  Efficiency found;
  run_groups(1, [&](const Group& group) {
    const auto step = [] { std::this_thread::sleep_for(5ms); };
    found = measure_efficiency(group, step, step, {.rounds = 1, .time = 100ms});
  });
  for (const pid_t pid : others) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  EXPECT_FALSE(found.reliable());
  EXPECT_THAT(found.doubt, HasSubstr("other programs used"));
}

TEST(Tally, CountsRightAnswers) {
  Tally tally;
  tally.add(torch::tensor(2.0F), torch::tensor({{0.1, 0.9}, {0.8, 0.2}, {0.3, 0.7}}),
            torch::tensor({1, 1, 1}, torch::kLong));
  tally.add(torch::tensor(6.0F), torch::tensor({{5.0, 1.0}}), torch::tensor({0}, torch::kLong));
  const Score score = tally.score();
  EXPECT_EQ(score.samples, 4);
  EXPECT_DOUBLE_EQ(score.accuracy, 3.0 / 4);
  EXPECT_DOUBLE_EQ(score.loss, (3 * 2.0 + 1 * 6.0) / 4) << "a short batch weighs less";
  // Neither an empty batch counts nor one of shapes that do not belong together.
  Tally empty(2);
  const auto targets = [](int count) { return torch::zeros({count}, torch::kLong); };
  for (const auto& [outputs, of] :
       {std::pair(torch::zeros({3, 2}), targets(2)), {torch::zeros({3}), targets(3)}})
    EXPECT_THROW(empty.add(torch::tensor(1.0F), outputs, of), InvalidArgument);
  empty.add(torch::tensor(NAN), torch::zeros({0, 3}), targets(0));
  EXPECT_EQ(empty.score().samples, 0);
  EXPECT_EQ(empty.score().loss, 0);
  EXPECT_EQ(empty.score().accuracy, 0);
}

TEST(Tally, CountsAnswersAmongTheBest) {
  // Sample i's outputs fall from class i on, so class c comes (c - i) mod 4 places behind the best.
  at::Tensor outputs = torch::zeros({4, 4});
  for (int i = 0; i < 4; ++i)
    for (int c = 0; c < 4; ++c) outputs[i][c] = -((c - i + 4) % 4);
  const at::Tensor targets = torch::tensor({0, 2, 0, 3}, torch::kLong);  // places 0, 1, 2, 0
  const double expected[] = {2.0 / 4, 3.0 / 4, 4.0 / 4, 4.0 / 4, 4.0 / 4};
  for (std::int64_t k = 1; k <= 5; ++k) {
    Tally tally(k);
    tally.add(torch::tensor(1.0F), outputs, targets);
    tally.add(torch::tensor(1.0F), outputs.slice(0, 0, 2), targets.slice(0, 0, 2));
    EXPECT_DOUBLE_EQ(tally.score().accuracy, (2 + 1) / 6.0);
    EXPECT_DOUBLE_EQ(tally.score().top, (4 * expected[k - 1] + (k == 1 ? 1 : 2)) / 6) << k;
  }
  EXPECT_THROW(Tally(0), InvalidArgument);
}

TEST_ON_RANKS(Tally, IsExactOverRanksOfUnequalSizes, 1, 2, 3, 7) {
  const int ranks = world.size();
  Tally tally;
  // Rank 0 has nothing; rank r has r samples of loss r, one of them right.
  if (world.rank() > 0) tally.add(world.rank(), 1, world.rank());
  const Score score = tally.score(world);
  double samples = 0;
  double loss = 0;
  for (int rank = 1; rank < ranks; ++rank) {
    samples += rank;
    loss += rank * rank;
  }
  EXPECT_EQ(score.samples, static_cast<std::int64_t>(samples));
  EXPECT_DOUBLE_EQ(score.loss, ranks == 1 ? 0 : loss / samples);
  EXPECT_DOUBLE_EQ(score.accuracy, ranks == 1 ? 0 : (ranks - 1) / samples);
  EXPECT_EQ(score.top, score.accuracy);
}

TEST_ON_RANKS(Throughput, IsOfAllSamplesInTheSlowestRanksTime, 1, 2, 3, 7) {
  // Rank r has 10 r samples and takes 8 - r seconds: rank 0 is the slowest.
  const double rate = throughput(10 * world.rank(), 8.0 - world.rank(), world);
  EXPECT_DOUBLE_EQ(rate, 10 * world.size() * (world.size() - 1) / 2 / 8.0);
  EXPECT_EQ(throughput(0, 0, world), 0) << "nothing was done, in no time";
}

}  // namespace
}  // namespace lockstep::testing
