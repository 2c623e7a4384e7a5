#include <torch/torch.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "lockstep/error.h"
#include "lockstep/init.h"
#include "tests/matchers.h"

// Worlds without a launcher, whose ranks are threads of this process.

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

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

}  // namespace
}  // namespace lockstep::testing
