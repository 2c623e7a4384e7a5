#include <ATen/Parallel.h>
#include <torch/torch.h>
#include <unistd.h>

#include <array>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <typeinfo>

#include "tests/group/on_threads.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

TEST(Spawn, RefusesSizesAndTimeoutsOutsideTheRange) {
  const auto nothing = [](const Group&) {};
  for (const int size : {0, -3, 100'000}) {
    EXPECT_THAT(refusal([&] { spawn(size, nothing); }),
                HasSubstr("spawn: got " + std::to_string(size) + " ranks, expected 1 to 512"));
  }
  EXPECT_THAT(refusal([&] { spawn(1, nothing, {.timeout = -5ms}); }),
              HasSubstr("spawn: got a timeout of -5 ms"));
}

TEST(Spawn, RethrowsWhatTheFirstFailingRankThrew) {
  const auto fails = [](const Group& world) {
    if (world.rank() == 2) throw std::out_of_range("rank 2 has it");
    try {
      world.barrier().wait();
      ADD_FAILURE();
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 2: rank 2 has it"));
      throw;
    }
  };
  EXPECT_EQ(message_of<std::out_of_range>([&] { spawn(3, fails); }), "rank 2 has it");
  const auto throws_no_exception = [](const Group& world) {
    if (world.rank() == 0) throw 7;
  };
  EXPECT_THROW(spawn(2, throws_no_exception), int);
  const auto tells_nobody = [](const Group& world) {
    if (world.rank() == 1) all_or_none(world, [] { throw std::out_of_range("rank 1 has it"); });
  };
  EXPECT_THROW(spawn(2, tells_nobody), std::out_of_range);
}

TEST(Spawn, NamesARankThatReturnedEarly) {
  EXPECT_THAT(message_of<CommError>([] {
                spawn(2, [](const Group& world) {
                  if (world.rank() == 0) world.barrier().wait();
                });
              }),
              HasSubstr("rank 1 left the world (returned) before barrier #1"));
}

TEST(Spawn, ARankThatReturnedDoesNotEndTheWaitForTheOthers) {
  spawn(3, [](const Group& world) {
    const auto number = torch::ones({1});
    if (world.rank() == 2) std::this_thread::sleep_for(100ms);
    if (world.rank() > 0) return world.send(number, 0).wait();
    for (int i = 0; i < 2; ++i) world.recv(number, any_source).wait();
  });
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

/// Expects this report of rank 2 of three, which returns once that has been reported. Returns
/// whether spawn() threw what another rank threw.
bool reports(const std::function<void(const Group&)>& fn, const std::string& report) {
  StderrPipe err;
  std::string said;
  const auto run = [&](const Group& world) {
    fn(world);
    if (world.rank() == 2) said = err.line();
  };
  const auto thrown = message_of<std::out_of_range>([&] { spawn(3, run, {.timeout = 200ms}); });
  EXPECT_EQ(said, "lockstep: spawn: " + report + " rank 2 of 3, which has not returned\n");
  return !thrown.empty();
}

TEST(Spawn, ReportsARankThatHangs) {
  EXPECT_FALSE(reports([](const Group&) {}, "ranks 0, 1 returned; spawn() still waits for"));
  const auto fails = [](const Group& world) {
    if (world.rank() == 1) throw std::out_of_range("rank 1 has it");
  };
  EXPECT_TRUE(reports(fails, "the world failed: rank 1: rank 1 has it; spawn() still waits for"));
}

TEST_ON_RANKS(Spawn, RanksHaveNoRanks, 2) {
  EXPECT_THROW(spawn(2, [](const Group&) {}), InvalidArgument);
  EXPECT_THROW(init(), InvalidArgument);
}

TEST(Spawn, DividesTheCoresAndLeavesTheCallerAsItWas) {
  const int before = at::get_num_threads();
  spawn(64, [](const Group&) { EXPECT_EQ(at::get_num_threads(), 1); });
  EXPECT_EQ(at::get_num_threads(), before);
}

TEST(Init, AloneIsAWorldOfOneAndOnlyOnce) {
  EXPECT_THAT(refusal([] { init({.device = at::kXPU}); }), HasSubstr("got no xpu device"));
  {
    const Group world = init({.device = at::kCPU});
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
  for (const int size : {1, 2, 3, 7}) {
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

TEST(Join, ANameIsFreeAgainAndTheHeapIsLimited) {
  for (int i = 0; i < 3; ++i) {
    run(2, [](int rank) {
      const Group world = join(own("again"), rank, 2, {.timeout = 20s, .heap_bytes = 1 << 20});
      EXPECT_THROW(world.empty({1 << 20}), CommError);
      EXPECT_EQ(world.empty({1 << 10}).numel(), 1 << 10);
      world.barrier().wait();
    });
  }
}

TEST(Join, RefusesWrongArguments) {
  EXPECT_THAT(refusal([] { join("", 0, 1); }), HasSubstr("empty name"));
  EXPECT_THAT(refusal([] { join("a", 2, 2); }), HasSubstr("got rank 2"));
  EXPECT_THAT(refusal([] { join("a", 0, 0); }), HasSubstr("got a world of 0 ranks"));
  EXPECT_THAT(refusal([] { join("a", 0, 1, {.timeout = 0ms}); }),
              HasSubstr("join: got a timeout of 0 ms"));
  EXPECT_THAT([] { join(own("alone"), 0, 2, {.timeout = 200ms}); },
              ThrowsMessage<TimeoutError>(
                  HasSubstr("join: rank 0 of 2 waited 0.2 s for rank 1 to call join")));
  EXPECT_THAT([] { join(own("alone"), 1, 2, {.timeout = 200ms}); },
              ThrowsMessage<TimeoutError>(HasSubstr("join: rank 1 of 2 waited 0.2 s for rank 0")));
}

TEST(Join, GroupsByMembers) {
  run(3, [](int rank) {
    const Group world = join(own("members"), rank, 3, {.timeout = 20s});
    const auto refused = [&](const std::vector<int>& members) {
      return refusal([&] { world.new_group(members); });
    };
    EXPECT_THAT(refused({(rank + 1) % 3}), HasSubstr("only members call new_group()"));
    EXPECT_THAT(refused({rank, rank}), HasSubstr("twice"));
    EXPECT_THAT(refused({rank, 3}), HasSubstr("got member 3"));
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

/// Expects the error that the last rank throws, on all ranks.
template <class Thrown>
void expect_from_last_rank(int ranks) {
  on_ranks(ranks, [&](const Group& group) {
    const int last = ranks - 1;
    const bool own = group.rank() == last;
    try {
      all_or_none(group, [&] {
        if (own) throw Thrown("the cause");
      });
      ADD_FAILURE() << "went on alone";
    } catch (const std::exception& error) {
      EXPECT_EQ(error.what(), (own ? "" : "rank " + std::to_string(last) + ": ") + "the cause");
      EXPECT_EQ(typeid(error) == typeid(Thrown), own || (std::is_base_of_v<Error, Thrown>));
    }
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

TEST_ON_RANKS(AllOrNone, TheFirstErrorReachesTheOthersWhateverItIs, 3) {
  const bool fails = world.rank() > 0;
  const auto thrown = [&](const std::function<void()>& fn) {
    return message_of<std::exception>([&] {
      all_or_none(world, [&] {
        if (fails) fn();
      });
    });
  };
  const auto own = "of rank " + std::to_string(world.rank());
  EXPECT_EQ(thrown([&] { throw DataError(own); }), fails ? own : "rank 1: of rank 1");
  EXPECT_EQ(thrown([] { throw std::runtime_error(""); }), fails ? "" : "rank 1: unknown error");
  EXPECT_THAT(thrown([] { TORCH_CHECK(false, ""); }), HasSubstr(fails ? "" : "rank 1: "));
  const auto throws_a_number = [&] { thrown([] { throw 7; }); };
  if (fails) {
    EXPECT_THROW(throws_a_number(), int);
  } else {
    EXPECT_EQ(thrown([] {}), "rank 1: an exception that is not a std::exception");
  }
}

TEST_ON_RANKS(AllOrNone, RepeatedErrorsHaveTheFieldsOfTheFirst, 3) {
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
}

}  // namespace
}  // namespace lockstep::testing
