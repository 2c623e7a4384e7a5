#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <latch>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <utility>

#include "comm/communicator.h"
#include "comm/host/host.h"
#include "lockstep/error.h"
#include "lockstep/group_from_backend.h"
#include "tests/adapter/adapted_ranks.h"

// Errors of a Group over a c10d::Backend.

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Call = std::function<Work(const Group&)>;

constexpr auto short_wait = std::chrono::milliseconds(300);

struct Difference {
  const char* name;
  Call as_expected;
  Call otherwise;
  const char* got;
  const char* expected;
};

Work sum_of(const Group& group, std::int64_t count, at::ScalarType dtype = at::kFloat) {
  return group.all_reduce(at::zeros({count}, dtype));
}

Work of_wrapper(const Group& group, std::uint16_t number) {
  const SourceScope scope(group.communicator(), {.owner = Source::Owner::distributed_data_parallel,
                                                 .content = Source::Content::gradients,
                                                 .number = number,
                                                 .bucket = 0});
  return sum_of(group, 8);
}

const Difference differences[] = {
    {"Dtype", [](auto& g) { return sum_of(g, 8); },
     [](auto& g) { return sum_of(g, 8, at::kDouble); }, "all_reduce sum float64 [8]",
     "all_reduce sum float32 [8] as on rank 0"},
    {"Count", [](auto& g) { return sum_of(g, 100'000); }, [](auto& g) { return sum_of(g, 99'999); },
     "[99999]", "[100000]"},
    {"ReduceOp", [](auto& g) { return sum_of(g, 8); },
     [](auto& g) { return g.all_reduce(at::zeros({8}), ReduceOp::max); }, "all_reduce max",
     "all_reduce sum"},
    {"Root", [](auto& g) { return g.broadcast(at::zeros({8}), 0); },
     [](auto& g) { return g.broadcast(at::zeros({8}), 1); }, "root 1", "root 0"},
    {"Source", [](auto& g) { return of_wrapper(g, 1); }, [](auto& g) { return of_wrapper(g, 2); },
     "for bucket 0 of the gradients of DistributedDataParallel #2",
     "for bucket 0 of the gradients of DistributedDataParallel #1 as on rank 0"},
    {"Order", [](auto& g) { return g.barrier(); }, [](auto& g) { return sum_of(g, 8); },
     "all_reduce sum float32", "expected barrier"},
};

class AdapterMismatch : public ::testing::TestWithParam<std::tuple<Difference, int>> {};

TEST_P(AdapterMismatch, IsNamedOnEveryRank) {
  const auto& [difference, n] = GetParam();
  // Without a store: all of them see it for themselves.
  const auto texts =
      what_adapted_ranks_threw(n,
                               [&, &d = difference](const Group& world) {
                                 world.barrier().wait();
                                 (world.rank() == 1 ? d.otherwise : d.as_expected)(world).wait();
                               },
                               {.store = {}});
  EXPECT_THAT(texts, Each(AllOf(HasSubstr("(c10d/memory) rank "),
                                HasSubstr("collective #2 differs between ranks: rank 1 got"),
                                HasSubstr(difference.got), HasSubstr(difference.expected))));
}

INSTANTIATE_TEST_SUITE_P(Adapter, AdapterMismatch,
                         ::testing::Combine(::testing::ValuesIn(differences),
                                            ::testing::Values(2, 3)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) +
                                  std::to_string(std::get<1>(test.param));
                         });

TEST(AdapterFailure, MessageMismatchIsNamedOnBothSides) {
  const auto texts =
      what_adapted_ranks_threw(2,
                               [](const Group& world) {
                                 if (world.rank() == 0) world.send(at::zeros({4}), 1, 7).wait();
                                 if (world.rank() == 1)
                                   world.recv(at::zeros({4}, at::kDouble), 0, 7).wait();
                               },
                               {.store = {}});
  EXPECT_THAT(texts, Each(AllOf(HasSubstr("message #1 from rank 0 to rank 1 differs"),
                                HasSubstr("got 4 elements of float32 with tag 7"),
                                HasSubstr("expected 4 elements of float64"))));
}

TEST(AdapterFailure, RanksOfSplitGroupsAreNamedAsInTheWorld) {
  const auto texts = what_adapted_ranks_threw(4, [](const Group& world) {
    const auto pair = world.split(world.rank() / 2);
    sum_of(pair, world.rank() == 3 ? 9 : 8).wait();
    world.barrier().wait();
  });
  EXPECT_THAT(texts, Each(AllOf(HasSubstr("rank 3 got"), HasSubstr("as on rank 2"))));
}

TEST(AdapterFailure, ARankThatDoesNotComeIsNamed) {
  const auto waits = [](const Group& world) {
    // Rank 1 begins nothing, and learns from the store that the others have given up.
    while (world.rank() == 1) world.communicator().make_progress();
    world.all_reduce(at::zeros({100'000})).wait();
  };
  EXPECT_THAT(what_adapted_ranks_threw(3, waits, {.timeout = short_wait}),
              Each(HasSubstr("all_reduce #1 waited 0.3 s for rank 1")));
}

TEST(AdapterFailure, HasFields) {
  const auto waits = [](const Group& world) {
    while (world.rank() == 1) world.communicator().make_progress();
    world.barrier().wait();
  };
  EXPECT_THAT(fields_adapted_ranks_threw(2, waits, {.timeout = short_wait}),
              ElementsAre("timeout by rank 1 in barrier #1, cause timeout",
                          "timeout by rank 1 in , cause timeout"));
  const auto differs = [](const Group& world) { sum_of(world, 8 + world.rank()).wait(); };
  EXPECT_THAT(fields_adapted_ranks_threw(2, differs),
              Each("communication by rank 1 in all_reduce #1, cause communication"));
  const auto fails = [](const Group& world) {
    if (world.rank() == 1) world.communicator().fail("no such file");
    world.barrier().wait();
  };
  EXPECT_THAT(fields_adapted_ranks_threw(2, fails),
              Each("communication by rank 1 in barrier #1, cause general"));
}

TEST(AdapterFailure, ATimeoutIsATimeoutError) {
  std::latch over(2);
  const auto waits = [&](const Group& world) {
    if (world.rank() == 0) {
      EXPECT_THROW(world.barrier().wait(), TimeoutError);
      EXPECT_THROW((void)world.barrier(), TimeoutError);
    }
    over.arrive_and_wait();
  };
  EXPECT_THAT(what_adapted_ranks_threw(2, waits, {.store = {}, .timeout = short_wait}), Each(""));
}

TEST(AdapterFailure, TheFirstCauseReachesRanksThatWait) {
  const auto texts = what_adapted_ranks_threw(3, [](const Group& world) {
    if (world.rank() == 1) {
      world.communicator().fail("rank 1: no such file");
      world.barrier().wait();
    }
    world.all_reduce(at::zeros({100'000})).wait();
  });
  EXPECT_THAT(texts, Each(HasSubstr("rank 1: no such file")));
  EXPECT_THAT(texts[1], HasSubstr(": the world failed earlier: rank 1: no such file; "));
}

TEST(AdapterFailure, WhatAnExceptionLeavesBehindEndsTheWorld) {
  std::latch thrown(1);
  const auto texts = what_adapted_ranks_threw(2, [&](const Group& world) {
    if (world.rank() == 1) {
      thrown.wait();  // else rank 0's operation might be complete by then
      world.all_reduce(at::zeros({100'000})).wait();
    }
    try {
      const auto work = world.all_reduce(at::zeros({100'000}));
      throw std::runtime_error("of its own");
    } catch (const std::runtime_error&) {
      thrown.count_down();
      throw;
    }
  });
  EXPECT_EQ(texts[0], "of its own");
  EXPECT_THAT(texts[1], HasSubstr("all_reduce #1 was abandoned"));
}

TEST(AdapterFailure, ARankThatEndsIsNamedByTheBackendsWords) {
  const auto texts = what_adapted_ranks_threw(2,
                                              [](const Group& world) {
                                                if (world.rank() == 0) world.barrier().wait();
                                              },
                                              {.store = {}});
  EXPECT_THAT(texts,
              ElementsAre(AllOf(HasSubstr("barrier #1 (c10d/memory) rank 0 of 2"),
                                HasSubstr("rank 0, waiting for rank 1: connection closed by rank "
                                          "1")),
                          ""));
}

TEST(AdapterFailure, WorldsThatShareAStoreDoNotHearOneAnother) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto fails = [](const Group& world) { world.communicator().fail("an old failure"); };
  what_adapted_ranks_threw(2, fails, {.store = store});
  const auto texts = what_adapted_ranks_threw(
      2,
      [](const Group& world) {
        // Until each has looked at the store a few times: it does so ten times a second.
        const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
        for (auto on = at::ones({1}); on.item<float>() > 0;) {
          on.fill_(std::chrono::steady_clock::now() < until ? 1 : 0);
          world.broadcast(on).wait();
        }
      },
      {.store = store});
  EXPECT_THAT(texts, Each(""));
}

TEST(AdapterFailure, ABackendThatCannotSendSaysSo) {
  class Dumb final : public c10d::Backend {
   public:
    using Backend::Backend;
    const std::string getBackendName() const override { return "dumb"; }
  };
  EXPECT_EQ(group_from_backend(c10::make_intrusive<Dumb>(0, 1)).size(), 1)
      << "one rank needs nobody";
  try {
    group_from_backend(c10::make_intrusive<Dumb>(0, 2));
    FAIL();
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("(c10d/dumb) rank 0 of 2"),
                                    HasSubstr("Backend dumb does not support recv")));
  }
}

TEST(AdapterFailure, AForkedChildLeavesTheWorldAlone) {
  const auto texts = what_adapted_ranks_threw(2, [](Group world) {
    auto work = world.barrier();
    if (world.rank() == 1) {
      const pid_t child = ::fork();
      if (child == 0) {
        bool refused = false;
        try {
          world.barrier().wait();
        } catch (const InvalidArgument&) {
          refused = true;
        }
        { const auto gone = std::move(work); }
        world = Group(host::create(host::World::create(1), 0, {}));
        ::_exit(refused ? 0 : 1);
      }
      int status = 0;
      ::waitpid(child, &status, 0);
      EXPECT_EQ(status, 0);
    }
    work.wait();
    world.barrier().wait();
  });
  EXPECT_THAT(texts, Each(""));
}

TEST(AdapterFailure, NoBackendIsAnInvalidArgument) {
  EXPECT_THROW(group_from_backend({}), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::testing
