#include <ATen/Parallel.h>
#include <torch/torch.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <string>

#include "lockstep/init.h"
#include "tests/matchers.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

TEST(Spawn, GivesEveryRankItsGroup) {
  std::vector<int> ranks(5, -1);
  spawn(5, [&](const Group& world) {
    EXPECT_EQ(world.size(), 5);
    EXPECT_EQ(world.local_size(), 5);
    ranks[static_cast<std::size_t>(world.rank())] = world.rank();
  });
  EXPECT_THAT(ranks, ElementsAre(0, 1, 2, 3, 4));
}

TEST(Spawn, RefusesSizesOutsideTheRange) {
  EXPECT_THROW(spawn(0, [](const Group&) {}), InvalidArgument);
  EXPECT_THROW(spawn(-3, [](const Group&) {}), InvalidArgument);
  EXPECT_THROW(spawn(100'000, [](const Group&) {}), InvalidArgument);
}

TEST(Spawn, RethrowsWhatTheFirstFailingRankThrew) {
  std::atomic<int> told{0};
  try {
    spawn(3, [&](const Group& world) {
      if (world.rank() == 2) throw std::out_of_range("rank 2 has it");
      try {
        world.barrier().wait();
      } catch (const CommError& error) {
        EXPECT_THAT(error.what(), HasSubstr("rank 2: rank 2 has it"));
        ++told;
        throw;
      }
    });
    FAIL();
  } catch (const std::out_of_range& error) {
    EXPECT_STREQ(error.what(), "rank 2 has it");
  }
  EXPECT_EQ(told, 2);
}

TEST(Spawn, RethrowsWhatIsNoStdException) {
  EXPECT_THROW(spawn(2,
                     [](const Group& world) {
                       if (world.rank() == 0) throw 7;
                     }),
               int);
}

TEST(Spawn, NamesARankThatReturnedEarly) {
  EXPECT_THAT(message_of<CommError>([] {
                spawn(2, [](const Group& world) {
                  if (world.rank() == 0) world.barrier().wait();
                });
              }),
              HasSubstr("rank 1 left the world (returned) before barrier #1"));
}

/// This process's stderr, as a pipe, while it lives.
class StderrPipe {
 public:
  StderrPipe() : before_(::dup(STDERR_FILENO)) {
    EXPECT_EQ(::pipe(ends_.data()), 0);
    ::dup2(ends_[1], STDERR_FILENO);
    ::close(ends_[1]);
  }
  ~StderrPipe() {
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
    ::close(ends_[0]);
  }
  StderrPipe(const StderrPipe&) = delete;
  StderrPipe& operator=(const StderrPipe&) = delete;

  std::string line() {
    std::string text;
    for (char letter = 0; letter != '\n' && ::read(ends_[0], &letter, 1) == 1;) text += letter;
    return text;
  }

 private:
  std::array<int, 2> ends_{};
  int before_;
};

TEST(Spawn, ReportsARankThatHangsAfterAFailure) {
  StderrPipe err;
  std::string said;
  const auto run = [&] {
    spawn(3,
          [&](const Group& world) {
            if (world.rank() == 1) throw std::out_of_range("rank 1 has it");
            if (world.rank() == 2) said = err.line();  // returns once that has been reported
          },
          {.timeout = std::chrono::milliseconds(200)});
  };
  EXPECT_THROW(run(), std::out_of_range);
  EXPECT_EQ(said,
            "lockstep: spawn: the world failed: rank 1: rank 1 has it; spawn() still waits for "
            "rank 2 of 3, which has not returned\n");
}

TEST(Spawn, ReportsARankThatHangsAfterTheOthersReturned) {
  StderrPipe err;
  std::string said;
  spawn(3,
        [&](const Group& world) {
          if (world.rank() == 2) said = err.line();
        },
        {.timeout = std::chrono::milliseconds(200)});
  EXPECT_EQ(said,
            "lockstep: spawn: ranks 0, 1 returned; spawn() still waits for rank 2 of 3, which has "
            "not returned\n");
}

TEST(Spawn, RanksHaveNoRanks) {
  spawn(2, [](const Group&) {
    EXPECT_THROW(spawn(2, [](const Group&) {}), InvalidArgument);
    EXPECT_THROW(init(), InvalidArgument);
  });
}

TEST(Spawn, DividesTheCoresAndLeavesTheCallerAsItWas) {
  const int before = at::get_num_threads();
  spawn(64, [](const Group&) { EXPECT_EQ(at::get_num_threads(), 1); });
  EXPECT_EQ(at::get_num_threads(), before);
}

TEST(Init, AloneIsAWorldOfOneAndOnlyOnce) {
  {
    const Group world = init();
    EXPECT_EQ(world.size(), 1);
    EXPECT_EQ(world.rank(), 0);
    auto tensor = torch::arange(4);
    world.all_reduce(tensor, ReduceOp::sum).wait();
    EXPECT_TRUE(torch::equal(tensor, torch::arange(4)));
  }
  EXPECT_THAT(refusal([] { init(); }), HasSubstr("a second time"));
}

TEST(Init, RefusesTimeoutsThatAreNone) {
  EXPECT_THROW(spawn(1, [](const Group&) {}, {.timeout = std::chrono::milliseconds(-5)}),
               InvalidArgument);
}

}  // namespace
}  // namespace lockstep::testing
