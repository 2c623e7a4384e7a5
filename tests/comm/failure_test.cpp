#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <functional>
#include <future>
#include <limits>
#include <thread>

#include "lockstep/comm/host/host.h"
#include "lockstep/core/error.h"
#include "oracle.h"
#include "ranks.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

/// What each rank's fn threw, "" if nothing. Ranks are threads.
std::vector<std::string> what_ranks_threw(int n, const RankFunction& fn,
                                          std::chrono::milliseconds timeout = 20s) {
  std::vector<std::string> texts(static_cast<std::size_t>(n));
  run_ranks(
      n,
      [&](const std::shared_ptr<Communicator>& group) {
        try {
          fn(group);
        } catch (const Error& error) {
          texts[static_cast<std::size_t>(group->rank())] = error.what();
        }
      },
      timeout);
  return texts;
}

using Call = std::function<Work(Communicator&)>;

struct Mismatch {
  const char* name;
  Call as_expected;
  Call otherwise;
  const char* got;
  const char* expected;
};

float floats[128];
double doubles[64];

const Mismatch mismatches[] = {
    {"Dtype", [](auto& g) { return g.all_reduce(floats, 8, DType::f32, ReduceOp::sum); },
     [](auto& g) { return g.all_reduce(doubles, 8, DType::f64, ReduceOp::sum); },
     "all_reduce sum float64 of 8 elements", "all_reduce sum float32 of 8 elements as on rank 0"},
    {"Count", [](auto& g) { return g.all_reduce(floats, 8, DType::f32, ReduceOp::sum); },
     [](auto& g) { return g.all_reduce(floats, 9, DType::f32, ReduceOp::sum); }, "of 9 elements",
     "of 8 elements"},
    {"Shape",
     [](auto& g) {
       return g.all_reduce(floats, 6, DType::f32, ReduceOp::sum, {.shape = {2, 3}});
     },
     [](auto& g) {
       return g.all_reduce(floats, 6, DType::f32, ReduceOp::sum, {.shape = {3, 2}});
     },
     "[3, 2]", "[2, 3]"},
    {"ReduceOp", [](auto& g) { return g.all_reduce(floats, 8, DType::f32, ReduceOp::sum); },
     [](auto& g) { return g.all_reduce(floats, 8, DType::f32, ReduceOp::max); }, "all_reduce max",
     "all_reduce sum"},
    {"Order", [](auto& g) { return g.all_reduce(floats, 8, DType::f32, ReduceOp::sum); },
     [](auto& g) { return g.broadcast(floats, 8, DType::f32, 0); }, "broadcast float32 root 0",
     "all_reduce sum float32"},
    {"Root", [](auto& g) { return g.broadcast(floats, 8, DType::f32, 0); },
     [](auto& g) { return g.broadcast(floats, 8, DType::f32, 1); }, "root 1", "root 0"},
    {"Barrier", [](auto& g) { return g.barrier(); },
     [](auto& g) { return g.all_gather(floats, floats + 8, 2, DType::f32); }, "all_gather float32",
     "expected barrier"},
};

class Mismatched : public ::testing::TestWithParam<std::tuple<Mismatch, int>> {};

TEST_P(Mismatched, IsNamedOnEveryRank) {
  const auto& [mismatch, n] = GetParam();
  const auto texts = what_ranks_threw(n, [&, &m = mismatch](const auto& group) {
    group->barrier().wait();
    (group->rank() == 1 ? m.otherwise : m.as_expected)(*group).wait();
  });
  EXPECT_THAT(texts, Each(AllOf(HasSubstr("#2 differs between ranks: rank 1 got"),
                                HasSubstr(mismatch.got), HasSubstr(mismatch.expected))));
}

INSTANTIATE_TEST_SUITE_P(
    Host, Mismatched, ::testing::Combine(::testing::ValuesIn(mismatches), ::testing::Values(2, 3)),
    [](const auto& test) {
      return std::string(std::get<0>(test.param).name) + std::to_string(std::get<1>(test.param));
    });

TEST(Failure, MessageMismatchIsNamedOnBothSides) {
  const auto texts = what_ranks_threw(2, [](const auto& group) {
    if (group->rank() == 0) group->send(floats, 4, DType::f32, 1, 7).wait();
    if (group->rank() == 1) group->recv(doubles, 4, DType::f64, 0, 7).wait();
  });
  EXPECT_THAT(texts, Each(AllOf(HasSubstr("message #1 from rank 0 to rank 1 differs"),
                                HasSubstr("4 elements of float32 with tag 7"),
                                HasSubstr("4 elements of float64"))));
}

TEST(Failure, TimeoutNamesOperationAndMissingRanks) {
  std::promise<void> given_up;
  const auto over = given_up.get_future().share();
  const auto texts = what_ranks_threw(3, [&](const auto& group) {
    if (group->rank() != 0) {
      over.wait();
      group->barrier().wait();
      return;
    }
    auto work = group->all_reduce(floats, 8, DType::f32, ReduceOp::sum, {.timeout = 200ms});
    EXPECT_THROW(work.wait(), TimeoutError);
    given_up.set_value();
    group->barrier().wait();
  });
  EXPECT_THAT(texts, Each(HasSubstr("all_reduce #1 waited 0.2 s for ranks 1, 2")));
}

TEST(Failure, SilentRankIsNamedAfterTheTimeout) {
  const auto world = host::World::create(2);
  std::string text;
  std::thread rank0([&] {
    try {
      host::create(world, 0, {.timeout = 200ms});
    } catch (const TimeoutError& error) {
      text = error.what();
    }
  });
  rank0.join();
  EXPECT_EQ(text, "init (host) rank 0 of 2: init waited 0.2 s for rank 1 (never called init)");
}

TEST(Failure, AnEndlessTimeoutDoesNotExpire) {
  constexpr auto for_ever = std::chrono::milliseconds::max();
  run_ranks(
      2,
      [&](const auto& group) {
        group->barrier({.timeout = for_ever}).wait();
        if (group->rank() == 1) {
          std::promise<void> never;
          never.get_future().wait_for(20ms);  // long enough for rank 0 to sleep
        }
        group->barrier({.timeout = for_ever}).wait();
      },
      for_ever);
}

TEST(Failure, AMessageWithoutMemoryCostsNoNumber) {
  const auto world = host::World::create(1, 8 << 20);
  const auto group = host::create(world, 0, {.timeout = 1s});
  const std::vector<float> big(4 << 20);
  EXPECT_THROW((void)group->send(big.data(), big.size(), DType::f32, 0), CommError);
  std::int64_t number = 7;
  group->all_reduce(&number, 1, DType::i64, ReduceOp::sum).wait();
  auto sent = group->send(&number, 1, DType::i64, 0);
  std::int64_t got = 0;
  group->recv(&got, 1, DType::i64, 0).wait();
  sent.wait();
  EXPECT_EQ(got, 7);
}

TEST(Failure, TheOddOneOutIsNamedEvenIfItIsRank0) {
  const auto texts = what_ranks_threw(3, [](const auto& group) {
    const std::size_t count = group->rank() == 0 ? 9 : 8;
    group->all_reduce(floats + 16 * group->rank(), count, DType::f32, ReduceOp::sum).wait();
  });
  EXPECT_THAT(texts, Each(AllOf(HasSubstr("rank 0 got all_reduce sum float32 of 9"),
                                HasSubstr("of 8 elements as on rank 1"))));
}

TEST(Failure, CountsThatDifferAreNamed) {
  const auto texts = what_ranks_threw(2, [](const auto& group) {
    const std::vector<std::size_t> counts =
        group->rank() == 0 ? std::vector<std::size_t>{5, 3} : std::vector<std::size_t>{3, 5};
    std::array<float, 8> output;
    group->all_gather(floats, output.data(), counts, DType::f32).wait();
  });
  EXPECT_THAT(texts, Each(HasSubstr("with other counts")));
}

TEST(Failure, WiresThatDifferAreNamed) {
  const auto as_halves = [](const auto& group, const Wire& wire) {
    group->all_reduce(floats + 16 * group->rank(), 8, ReduceOp::avg, wire).wait();
  };
  EXPECT_THAT(
      what_ranks_threw(2,
                       [&](const auto& group) {
                         const bool first = group->rank() == 0;
                         as_halves(group, {.dtype = first ? DType::f16 : DType::bf16});
                       }),
      Each(HasSubstr("rank 1 got all_reduce avg float32 as bfloat16 of 8 elements, expected "
                     "all_reduce avg float32 as float16")));
  EXPECT_THAT(what_ranks_threw(2,
                               [&](const auto& group) {
                                 as_halves(group, {.clip = group->rank() == 0 ? 1.0f : 2.0f});
                               }),
              Each(HasSubstr("dimensions or wire")));
}

TEST(Failure, RanksOfSplitGroupsAreNamedAsInTheWorld) {
  const auto texts = what_ranks_threw(4, [](const auto& group) {
    const auto pair = group->split(group->rank() / 2, 0);
    const std::size_t count = group->rank() == 3 ? 9 : 8;
    pair->all_reduce(floats + 16 * group->rank(), count, DType::f32, ReduceOp::sum).wait();
    group->barrier().wait();
  });
  EXPECT_THAT(texts, Each(AllOf(HasSubstr("rank 3 got"), HasSubstr("as on rank 2"))));
}

TEST(Failure, AWaitingRankDoesNotBlameItself) {
  std::promise<void> given_up;
  const auto over = given_up.get_future().share();
  const auto texts = what_ranks_threw(2, [&](const auto& group) {
    std::vector<std::vector<float>> data(20, std::vector<float>(100'000));
    std::vector<Work> works;
    for (std::size_t i = 0; i < (group->rank() == 0 ? 20u : 1u); ++i) {
      works.push_back(group->all_reduce(data[i].data(), data[i].size(), DType::f32, ReduceOp::sum,
                                        {.timeout = 200ms}));
    }
    if (group->rank() == 0) {
      EXPECT_THROW(works.back().wait(), TimeoutError);
      given_up.set_value();
    }
    over.wait();
    works.front().wait();
    group->barrier().wait();
  });
  EXPECT_THAT(texts, Each(HasSubstr("waited 0.2 s for rank 1")));
}

TEST(Failure, LeavingEarlyIsNamed) {
  const auto texts = what_ranks_threw(3, [](const auto& group) {
    if (group->rank() != 2)
      group->all_reduce(floats + 8 * group->rank(), 8, DType::f32, ReduceOp::sum).wait();
  });
  for (const int rank : {0, 1}) {
    EXPECT_THAT(texts[static_cast<std::size_t>(rank)],
                AllOf(HasSubstr("all_reduce #1 (host) rank " + std::to_string(rank) + " of 3"),
                      HasSubstr("rank 2 left the world before all_reduce #1")));
  }
}

TEST(Failure, EveryLaterCallRaisesTheFirstCause) {
  const auto texts = what_ranks_threw(2, [](const auto& group) {
    const auto half = group->split(0, 0);
    if (group->rank() == 0) group->fail("the first cause");
    if (group->rank() == 0) group->fail("a later one");
    for (int i = 0; i < 3; ++i) {
      EXPECT_THROW(group->barrier().wait(), CommError);
      EXPECT_THROW(half->barrier().wait(), CommError);
    }
    group->barrier().wait();
  });
  EXPECT_THAT(texts, Each(HasSubstr("rank 0: the first cause")));
}

TEST(Failure, AbandonedWorkEndsTheWorld) {
  std::promise<void> abandoned;
  const auto over = abandoned.get_future().share();
  const auto texts = what_ranks_threw(2, [&](const auto& group) {
    if (group->rank() == 0) {
      try {
        const auto work = group->all_reduce(floats, 8, DType::f32, ReduceOp::sum);
        throw std::runtime_error("unrelated");
      } catch (const std::runtime_error&) {
        abandoned.set_value();
      }
    }
    over.wait();
    group->barrier().wait();
  });
  EXPECT_THAT(texts, Each(HasSubstr("rank 0: all_reduce #1 was abandoned")));
}

TEST(Failure, DestroyedWorkIsFinished) {
  run_ranks(2, [](const auto& group) {
    std::int64_t number = group->rank() + 1;
    { const auto work = group->all_reduce(&number, 1, DType::i64, ReduceOp::sum); }
    EXPECT_EQ(number, 3);
  });
}

TEST(Failure, InvalidArgumentsLeaveTheGroupUsable) {
  run_ranks(2, [](const auto& group) {
    EXPECT_THROW((void)group->broadcast(floats, 1, DType::f32, 2), InvalidArgument);
    EXPECT_THROW((void)group->broadcast(floats, 1, DType::f32, -1), InvalidArgument);
    EXPECT_THROW((void)group->send(floats, 1, DType::f32, 5), InvalidArgument);
    EXPECT_THROW((void)group->all_reduce(nullptr, 1, DType::f32, ReduceOp::sum), InvalidArgument);
    EXPECT_THROW((void)group->all_reduce(floats, ~std::size_t{0}, DType::f32, ReduceOp::sum),
                 InvalidArgument);
    EXPECT_THROW((void)group->barrier({.timeout = -1ms}), InvalidArgument);
    for (const Wire wire : {Wire{.dtype = DType::f64}, Wire{.clip = -1},
                            Wire{.clip = std::numeric_limits<float>::infinity()}}) {
      EXPECT_THROW((void)group->all_reduce(floats, 1, ReduceOp::sum, wire), InvalidArgument);
    }
    EXPECT_THROW((void)group->all_reduce(floats, 1, ReduceOp::max, Wire{}), InvalidArgument);
    const std::vector<std::size_t> counts{1, 2, 3};
    EXPECT_THROW((void)group->all_gather(floats, floats, counts, DType::f32), InvalidArgument);
    // Only one rank erred, and none is out of step.
    if (group->rank() == 0) {
      EXPECT_THROW((void)group->broadcast(floats, 1, DType::f32, 9), InvalidArgument);
    }
    std::int64_t one = 1;
    group->all_reduce(&one, 1, DType::i64, ReduceOp::sum).wait();
    EXPECT_EQ(one, 2);
  });
}

TEST(Failure, TwoThreadsAtOnceAreRefused) {
  const auto texts = what_ranks_threw(2, [](const auto& group) {
    if (group->rank() == 1) group->recv(floats, 1, DType::f32, 0).wait();
    auto first = group->recv(floats, 1, DType::f32, 1);
    auto second = group->recv(floats, 1, DType::f32, 1);
    // One of the two is refused, whichever comes second.
    std::atomic<bool> refused = false;
    const auto expect_refusal = [&](const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 0 is used by two threads at once"));
      refused = true;
    };
    std::thread waiting([&] {
      try {
        first.wait();
      } catch (const InvalidArgument& error) {
        expect_refusal(error);
      } catch (const CommError&) {
      }
    });
    while (!refused) {
      try {
        EXPECT_FALSE(second.ready());
      } catch (const InvalidArgument& error) {
        expect_refusal(error);
      }
    }
    group->fail("over");
    waiting.join();
  });
  EXPECT_THAT(texts[1], HasSubstr("rank 0: over"));
}

TEST(Memory, ShortageIsAnErrorThatSaysHowMuch) {
  const auto world = host::World::create(1, 1 << 20);
  const auto group = host::create(world, 0, {});
  try {
    group->allocate(2 << 20);
    FAIL() << "took more than there is";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("cannot take 2097152 bytes"), HasSubstr("1048576")));
  }
  const auto big = host::create(host::World::create(1, std::size_t{1} << 44), 0, {});
  try {
    big->allocate(std::size_t{1} << 43);
    FAIL() << "took more than the machine has";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), HasSubstr("available on this machine"));
  }
  group->allocate(1 << 20);
}

TEST(Memory, IsReusedAndJoinedAgain) {
  const auto group = host::create(host::World::create(1, 1 << 20), 0, {});
  for (int round = 0; round < 100; ++round) {
    std::vector<std::shared_ptr<std::byte>> pieces;
    for (std::size_t bytes : {1u, 100u, 4096u, 65536u, 0u, 300000u}) {
      pieces.push_back(group->allocate(bytes));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pieces.back().get()) % 64, 0u);
    }
    if (round % 2 == 0) std::reverse(pieces.begin(), pieces.end());
  }
  EXPECT_NE(group->allocate(1 << 20), nullptr);
}

TEST(Memory, OutlivesItsGroup) {
  std::shared_ptr<std::byte> memory;
  {
    const auto group = host::create(host::World::create(1), 0, {});
    memory = group->allocate(1000);
  }
  memory.get()[999] = std::byte{7};
  EXPECT_EQ(memory.get()[999], std::byte{7});
}

/// What fn prints or throws in a child of this process, whose limits it may change.
std::string in_child(const std::function<std::string()>& fn) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    std::string text;
    try {
      text = fn();
    } catch (const std::exception& error) {
      text = error.what();
    }
    const auto written = ::write(ends[1], text.data(), text.size());
    ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text;
  char buffer[512];
  for (ssize_t got; (got = ::read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status)) << "the child was ended by signal " << WTERMSIG(status);
  return text;
}

TEST(Memory, LimitsOfTheProcessAreNamed) {
  const auto with_limit = [](int resource) {
    return in_child([&] {
      const rlimit limit{.rlim_cur = 1 << 20, .rlim_max = 1 << 20};
      ::setrlimit(static_cast<__rlimit_resource>(resource), &limit);
      host::World::create(2);
      return std::string("no error");
    });
  };
  EXPECT_THAT(with_limit(RLIMIT_FSIZE), HasSubstr("file size (ulimit -f) 1048576 bytes"));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_THAT(with_limit(RLIMIT_AS), HasSubstr("address space (ulimit -v) 1048576 bytes"));
#endif
}

TEST(World, SizesOutsideTheRangeAreRefused) {
  EXPECT_THROW(host::World::create(0), InvalidArgument);
  EXPECT_THROW(host::World::create(-1), InvalidArgument);
  EXPECT_THROW(host::World::create(host::max_ranks + 1), InvalidArgument);
  EXPECT_NO_THROW(host::World::create(host::max_ranks));
}

TEST(World, ForeignDescriptorsAreRefused) {
  EXPECT_THROW(host::World::attach(987, 2), CommError);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_THROW(host::World::attach(ends[0], 2), CommError);
  ::close(ends[1]);
  const int zeros = ::memfd_create("zeros", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(zeros, 1 << 20), 0);
  EXPECT_THROW(host::World::attach(zeros, 2), CommError);
  const auto world = host::World::create(2);
  EXPECT_THROW(host::World::attach(::dup(world->fd()), 3), CommError);
}

TEST(World, RanksJoinOnce) {
  const auto world = host::World::create(1);
  const auto group = host::create(world, 0, {});
  EXPECT_THROW(host::create(world, 0, {}), InvalidArgument);
  EXPECT_THROW(host::create(world, 1, {}), InvalidArgument);
}

// --- ranks that are processes

const ProcessBody killed("rank 1 is killed", [](const auto& group) {
  if (group->rank() == 1) ::raise(SIGKILL);
  group->all_reduce(floats, 8, DType::f32, ReduceOp::sum).wait();
});

const ProcessBody exits("rank 1 exits 0", [](const auto& group) {
  if (group->rank() == 1) ::_exit(0);
  group->barrier().wait();
});

const ProcessBody stopped("rank 1 is stopped", [](const auto& group) {
  if (group->rank() == 1) {
    // Stops itself; the parent of the test ends it once rank 0 has given up.
    ::raise(SIGSTOP);
  }
  try {
    group->all_reduce(floats, 8, DType::f32, ReduceOp::sum, {.timeout = 300ms}).wait();
  } catch (const TimeoutError&) {
    ::kill(0, SIGCONT);
    throw;
  }
});

TEST(Processes, KilledRankIsNamed) {
  const auto outcomes = run_processes(3, "rank 1 is killed");
  EXPECT_EQ(outcomes[1].code, SIGKILL);
  for (const int rank : {0, 2}) {
    const auto& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("rank 1 left the world (signal 9) before all_reduce #1"));
  }
}

TEST(Processes, EarlyExitIsNamed) {
  const auto outcomes = run_processes(2, "rank 1 exits 0");
  EXPECT_THAT(outcomes[0].err, HasSubstr("rank 1 left the world (exit code 0) before barrier #1"));
}

TEST(Processes, StoppedRankIsFoundByTheTimeout) {
  const auto outcomes = run_processes(2, "rank 1 is stopped");
  EXPECT_THAT(outcomes[0].err, HasSubstr("all_reduce #1 waited 0.3 s for rank 1"));
  EXPECT_THAT(outcomes[1].err, HasSubstr("all_reduce #1 waited 0.3 s for rank 1"));
}

}  // namespace
}  // namespace lockstep::testing
