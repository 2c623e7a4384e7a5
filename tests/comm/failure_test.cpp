#include <array>
#include <atomic>
#include <future>
#include <limits>

#include "comm/host/host.h"
#include "tests/comm/failures.h"
#include "tests/matchers.h"

namespace lockstep::testing {
namespace {

/// The fields of every rank's error, and its cause.
std::vector<std::string> causes_of_ranks(int n, const RankFunction& fn) {
  return errors_of_ranks(
      n, fn, [](const Error& error) { return fields_of(error) + ": " + error.cause(); });
}

TEST(ErrorFields, OfATimeoutAndOfARankThatLeft) {
  const auto waits = [](const auto& group) {
    // Rank 1 issues nothing, and learns from the world's memory that the other has given up.
    while (group->rank() == 1) group->make_progress();
    group->barrier({.timeout = 200ms}).wait();
  };
  EXPECT_THAT(errors_of_ranks(2, waits, fields_of),
              ElementsAre("timeout by rank 1 in barrier #1, cause timeout",
                          "timeout by rank 1 in , cause timeout"));
  const auto leaves = [](const auto& group) {
    if (group->rank() != 2) group->barrier().wait();
  };
  const std::string fields = "communication by rank 2 in barrier #1, cause communication";
  EXPECT_THAT(errors_of_ranks(3, leaves, fields_of), ElementsAre(fields, fields, ""));
}

TEST(ErrorFields, OfErrorsOfAllRanks) {
  const auto differs = [](const auto& group) {
    const auto dtype = group->rank() == 1 ? DType::f64 : DType::f32;
    group->all_reduce(floats + 32 * group->rank(), 8, dtype, ReduceOp::sum).wait();
  };
  EXPECT_THAT(causes_of_ranks(3, differs),
              Each(StartsWith("communication by rank 1 in all_reduce #1, cause communication: "
                              "collective #1 differs between ranks: rank 1 got all_reduce")));
  const auto fails = [](const auto& group) {
    if (group->rank() == 1) group->fail("disk full");
    group->barrier().wait();
  };
  EXPECT_THAT(causes_of_ranks(3, fails),
              Each("communication by rank 1 in barrier #1, cause general: rank 1: disk full"));
  const auto fails_on_another_host = [](const auto& group) {
    if (group->rank() == 0) {
      group->fail_with(
          {.kind = detail::Failure::Kind::error, .rank = 7, .text = "rank 7: disk full"});
    }
    group->barrier().wait();
  };
  EXPECT_THAT(errors_of_ranks(2, fails_on_another_host, fields_of),
              Each("communication by rank 7 in barrier #1, cause general"));
  const auto refused = [](const auto& group) { group->broadcast(floats, 8, DType::f32, 9).wait(); };
  EXPECT_THAT(errors_of_ranks(2, refused, fields_of),
              Each("invalid_argument by rank -1 in broadcast, cause invalid_argument"));
  const auto waits_in_another_group = [](const auto& group) {
    const auto other = group->split(0, 0);
    (group->rank() == 0 ? *group : *other).barrier().wait();
  };
  EXPECT_THAT(errors_of_ranks(2, waits_in_another_group, fields_of),
              Each(AllOf(StartsWith("communication by rank 1 in barrier #"),
                         EndsWith(", cause communication"))));
}

TEST(ErrorFields, OfInit) {
  try {
    host::create(host::World::create(2), 0, {.timeout = 50ms});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(fields_of(error), "timeout by rank 1 in init, cause timeout");
    EXPECT_STREQ(error.what(),
                 "init (host) rank 0 of 2: init waited 0.05 s for rank 1 (never called init)");
  }
}

TEST(ErrorFields, StayInACopyAndTakeOneOperation) {
  DataError error("short file", {.rank = 3, .cause = "eof", .cause_kind = ErrorKind::timeout});
  const DataError copy = error;
  error.set_operation("load");
  error.set_operation("init");
  EXPECT_EQ(fields_of(error), "data by rank 3 in load, cause timeout");
  EXPECT_EQ(fields_of(copy), "data by rank 3 in , cause timeout");
  EXPECT_EQ(copy.cause(), "eof");
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

TEST(Failure, AWaitingRankDoesNotBlameItself) {
  std::promise<void> given_up;
  const auto over = given_up.get_future().share();
  expect_errors(2, HasSubstr("waited 0.2 s for rank 1"), [&](const auto& group) {
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
}

TEST(Failure, EveryLaterCallRaisesTheFirstCause) {
  expect_errors(2, HasSubstr("rank 0: the first cause"), [](const auto& group) {
    const auto half = group->split(0, 0);
    if (group->rank() == 0) group->fail("the first cause");
    if (group->rank() == 0) group->fail("a later one");
    EXPECT_EQ(message_of<CommError>([&] { group->barrier().wait(); }).find("failed earlier") !=
                  std::string::npos,
              group->rank() == 0)
        << "only rank 0 knows of it before";
    EXPECT_THROW(half->barrier().wait(), CommError);
    group->barrier().wait();
  });
}

TEST(Failure, LaterCallsSayWhereTheWorldFailed) {
  const auto texts = what_ranks_threw(3, [](const auto& group) {
    if (group->rank() == 0) return;
    const SourceScope scope(*group, {.owner = Source::Owner::distributed_data_parallel});
    EXPECT_THAT(message_of<CommError>([&] { group->barrier().wait(); }),
                HasSubstr("of Python; use no_sync() on all ranks or on none"));
    group->split(0, 0);
  });
  const auto says_where =
      AllOf(HasSubstr("all_gather #2 (host) rank "),
            HasSubstr("the world failed earlier, in barrier #1: rank 0 left the world"),
            HasSubstr("; a failed world cannot be used again: start all ranks anew"));
  EXPECT_THAT(texts, ElementsAre("", says_where, says_where));
}

TEST(Failure, WhatAllGaveBeforeItIsComplete) {
  for (int round = 0; round < 200; ++round) {
    const auto texts = what_ranks_threw(2, [](const auto& group) {
      group->barrier().wait();
      if (group->rank() == 0) group->fail("too late for init() and the barrier");
    });
    ASSERT_THAT(texts, Each("")) << round;
  }
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
    const auto refused = [](const auto& call, const char* text = "") {
      EXPECT_THAT([&] { call().wait(); }, ThrowsMessage<InvalidArgument>(HasSubstr(text)));
    };
    const auto sum = [&](DType dtype, Reduction op, const char* text) {
      refused([&] { return group->all_reduce(floats, 4, dtype, op); }, text);
    };
    sum(DType::f32, ReduceOp::band, "got band of float32");
    sum(DType::boolean, ReduceOp::avg, "got avg of bool");
    sum(DType::i16, premultiplied_sum(2), "got premultiplied_sum of int16");
    refused([&] { return group->all_reduce(nullptr, 1, DType::f32, ReduceOp::sum); });
    refused([&] { return group->all_reduce(floats, ~std::size_t{0}, DType::f32, ReduceOp::sum); });
    for (const Wire wire : {Wire{.dtype = DType::f64}, Wire{.clip = -1},
                            Wire{.clip = std::numeric_limits<float>::infinity()}}) {
      refused([&] { return group->all_reduce(floats, 1, ReduceOp::sum, wire); });
    }
    refused([&] { return group->all_reduce(floats, 1, ReduceOp::max, Wire{}); });
    refused([&] { return group->reduce(floats, 4, DType::f32, ReduceOp::sum, 2); }, "got root 2");
    refused([&] { return group->broadcast(floats, 1, DType::f32, 2); });
    refused([&] { return group->broadcast(floats, 1, DType::f32, -1); });
    refused([&] { return group->send(floats, 1, DType::f32, 5); });
    refused([&] { return group->barrier({.timeout = -1ms}); });
    const std::vector<std::size_t> three(3, 1), two(2, 1), other{2, 2};
    std::array<float, 8> output;
    refused([&] { return group->all_gather(floats, floats, three, DType::f32); });
    refused([&] { return group->all_to_all(floats, output.data(), two, three, DType::f32); },
            "got 3 counts, expected one for each of 2 ranks");
    refused([&] { return group->all_to_all(floats, output.data(), two, other, DType::f32); },
            "got a part of 2 elements from this rank in the output, expected 1");
    // Only one rank erred, and none is out of step.
    if (group->rank() == 0) refused([&] { return group->broadcast(floats, 1, DType::f32, 9); });
    std::int64_t one = 1;
    group->all_reduce(&one, 1, DType::i64, ReduceOp::sum).wait();
    EXPECT_EQ(one, 2);
  });
}

// A call that the guard against two threads refuses is as if it had never been made.
TEST(Failure, ARefusedCallCostsNoNumber) {
  std::atomic<bool> refused = false;
  run_ranks(2, [&](const auto& group) {
    if (group->rank() == 1) {
      while (!refused) std::this_thread::yield();
      group->send(floats, 1, DType::f32, 0).wait();
    } else {
      auto first = group->recv(floats + 16, 1, DType::f32, 1);
      auto second = group->recv(floats + 17, 1, DType::f32, 1);
      std::thread waiting([&] {
        for (;;) {
          try {
            return first.wait();
          } catch (const InvalidArgument&) {
          }
        }
      });
      // Refused once, the other thread is inside, and stays there until the message comes.
      for (;;) {
        try {
          EXPECT_FALSE(second.ready());
        } catch (const InvalidArgument& error) {
          EXPECT_THAT(error.what(), HasSubstr("rank 0 is used by two threads at once"));
          break;
        }
      }
      EXPECT_THROW((void)group->barrier(), InvalidArgument);
      EXPECT_THROW((void)group->send(floats, 1, DType::f32, 1), InvalidArgument);
      refused = true;
      waiting.join();
      second.wait();
    }
    if (group->rank() == 1) group->send(floats, 1, DType::f32, 0).wait();
    std::int64_t one = 1;
    group->all_reduce(&one, 1, DType::i64, ReduceOp::sum).wait();
    EXPECT_EQ(one, 2);
  });
}

}  // namespace
}  // namespace lockstep::testing
