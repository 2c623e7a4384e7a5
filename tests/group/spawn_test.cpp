#include <ATen/Parallel.h>
#include <torch/torch.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <typeinfo>

#include "lockstep/init.h"
#include "tests/groups.h"
#include "tests/matchers.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

TEST(Spawn, GivesEveryRankItsGroup) {
  std::vector<int> ranks(5, -1);
  spawn(5, [&](const Group& world) {
    EXPECT_EQ(world.size(), 5);
    EXPECT_EQ(world.local_size(), 5);
    ranks[static_cast<std::size_t>(world.rank())] = world.rank();
  });
  EXPECT_THAT(ranks, ElementsAre(0, 1, 2, 3, 4));
}

TEST(Spawn, RefusesSizesAndTimeoutsOutsideTheRange) {
  EXPECT_THROW(spawn(0, [](const Group&) {}), InvalidArgument);
  EXPECT_THROW(spawn(-3, [](const Group&) {}), InvalidArgument);
  EXPECT_THROW(spawn(100'000, [](const Group&) {}), InvalidArgument);
  EXPECT_THROW(spawn(1, [](const Group&) {}, {.timeout = std::chrono::milliseconds(-5)}),
               InvalidArgument);
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
  const auto throws_no_exception = [](const Group& world) {
    if (world.rank() == 0) throw 7;
  };
  EXPECT_THROW(spawn(2, throws_no_exception), int);
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

// Worlds without a launcher, whose ranks are threads of this process.

std::string own(const std::string& name) { return name + " of test " + std::to_string(::getpid()); }

template <class Fn>
void run(int size, const Fn& fn) {
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.emplace_back([&fn, rank] { fn(rank); });
}

TEST(Join, WorldsOfOneProcess) {
  for (const int size : {1, 2, 3}) {
    run(size, [size](int rank) {
      const Group first = join(own("first"), rank, size, {.timeout = 20s});
      const Group second = join(own("second"), size - 1 - rank, size, {.heap_bytes = 1 << 20});
      EXPECT_EQ(first.rank(), rank);
      EXPECT_EQ(second.rank(), size - 1 - rank);
      for (const auto& world : {first, second}) {
        const auto tensor = world.empty({100}).fill_(world.rank() + 1);
        world.all_reduce(tensor).wait();
        EXPECT_EQ(tensor[99].item<int>(), size * (size + 1) / 2);
      }
    });
  }
}

TEST(Join, ANameIsFreeAgain) {
  for (int i = 0; i < 3; ++i) {
    run(2, [](int rank) { join(own("again"), rank, 2, {.timeout = 20s}).barrier().wait(); });
  }
}

TEST(Join, TheHeapIsLimited) {
  run(2, [](int rank) {
    const Group world = join(own("small"), rank, 2, {.heap_bytes = 1 << 20});
    EXPECT_THROW(world.empty({1 << 20}), CommError);
    EXPECT_EQ(world.empty({1 << 10}).numel(), 1 << 10);
    world.barrier().wait();
  });
}

TEST(Join, RefusesWrongArguments) {
  EXPECT_THAT([] { join("", 0, 1); }, ThrowsMessage<InvalidArgument>(HasSubstr("empty name")));
  EXPECT_THAT([] { join("a", 2, 2); }, ThrowsMessage<InvalidArgument>(HasSubstr("got rank 2")));
  EXPECT_THAT([] { join("a", 0, 0); },
              ThrowsMessage<InvalidArgument>(HasSubstr("got a world of 0 ranks")));
  EXPECT_THAT([] { join("a", 0, 1, {.timeout = 0ms}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("got a timeout of 0 ms")));
  EXPECT_THAT([] { join(own("alone"), 0, 2, {.timeout = 200ms}); },
              ThrowsMessage<TimeoutError>(
                  HasSubstr("join: rank 0 of 2 waited 0.2 s for ranks 1 to call join")));
  EXPECT_THAT([] { join(own("alone"), 1, 2, {.timeout = 200ms}); },
              ThrowsMessage<TimeoutError>(HasSubstr("join: rank 1 of 2 waited 0.2 s for rank 0")));
}

TEST(Join, GroupsByMembers) {
  run(3, [](int rank) {
    const Group world = join(own("members"), rank, 3, {.timeout = 20s});
    EXPECT_THAT([&] { world.new_group({(rank + 1) % 3}); },
                ThrowsMessage<InvalidArgument>(HasSubstr("only members call new_group()")));
    EXPECT_THAT(
        [&] {
          world.new_group({rank, rank});
        },
        ThrowsMessage<InvalidArgument>(HasSubstr("twice")));
    EXPECT_THAT(
        [&] {
          world.new_group({rank, 3});
        },
        ThrowsMessage<InvalidArgument>(HasSubstr("got member 3")));
    if (rank > 0) {
      const Group pair = world.new_group({2, 1});
      EXPECT_EQ(pair.rank(), 2 - rank);
      const auto tensor = torch::ones({4});
      pair.all_reduce(tensor).wait();
      EXPECT_EQ(tensor[0].item<int>(), 2);
    }
    world.barrier().wait();
  });
}

/// The error that all_or_none() raises on this rank when the last rank throws.
template <class Thrown>
std::string raised(const Group& group, bool& same_type) {
  try {
    all_or_none(group, [&] {
      if (group.rank() == group.size() - 1) throw Thrown("the cause");
    });
  } catch (const std::exception& error) {
    same_type = typeid(error) == typeid(Thrown);
    return error.what();
  }
  return "went on alone";
}

template <class Thrown>
void expect_from_last_rank(int ranks) {
  run_groups(ranks, [&](const Group& group) {
    const int last = ranks - 1;
    const bool own = group.rank() == last;
    bool same_type = false;
    EXPECT_EQ(raised<Thrown>(group, same_type),
              own ? "the cause" : "rank " + std::to_string(last) + ": the cause");
    EXPECT_EQ(same_type, own || (std::is_base_of_v<Error, Thrown>));
    group.barrier().wait();
  });
}

TEST(AllOrNone, AnErrorOfOneRankReachesAll) {
  for (const int ranks : {1, 2, 3, 7}) {
    expect_from_last_rank<DataError>(ranks);
    expect_from_last_rank<CheckpointError>(ranks);
    expect_from_last_rank<InvalidArgument>(ranks);
    expect_from_last_rank<std::logic_error>(ranks);
  }
}

TEST(AllOrNone, TheFirstOfSeveralErrorsIsToldToTheOthers) {
  run_groups(3, [](const Group& group) {
    try {
      all_or_none(group, [&] {
        if (group.rank() > 0) throw DataError("of rank " + std::to_string(group.rank()));
      });
      ADD_FAILURE();
    } catch (const DataError& error) {
      EXPECT_EQ(std::string(error.what()), group.rank() == 0
                                               ? "rank 1: of rank 1"
                                               : "of rank " + std::to_string(group.rank()));
    }
  });
}

TEST(AllOrNone, RepeatedErrorsHaveTheFieldsOfTheFirst) {
  run_groups(3, [](const Group& world) {
    const Group last_two = world.split(world.rank() == 0 ? 0 : 1);
    try {
      all_or_none(world, [&] {
        if (world.rank() == 0) return;
        all_or_none(last_two, [&] {
          if (world.rank() == 2) throw DataError("short file", {.operation = "read"});
        });
      });
      ADD_FAILURE();
    } catch (const DataError& error) {
      const bool own = world.rank() == 2;
      EXPECT_EQ(error.kind(), ErrorKind::data);
      EXPECT_EQ(error.rank(), own ? -1 : 2);
      EXPECT_EQ(error.operation(), "read");
      EXPECT_EQ(error.cause(), own ? "" : "short file");
      EXPECT_EQ(error.cause_kind(), ErrorKind::data);
    }
  });
}

}  // namespace
}  // namespace lockstep::testing
