#include <array>

#include "core/text.h"
#include "tests/comm/failures.h"
#include "tests/matchers.h"

// Ranks that call different things.

namespace lockstep::testing {
namespace {

using Call = std::function<Work(Communicator&)>;

struct Mismatch {
  const char* name;
  Call as_expected;
  Call otherwise;
  const char* got;
  const char* expected;
};

double doubles[64];
float many_floats[65536 + 8];
std::int16_t shorts[64];

/// A bucket of one of two wrappers.
Source bucket_of(int wrapper, int bucket) {
  return {.owner = Source::Owner::distributed_data_parallel,
          .content = Source::Content::gradients,
          .number = static_cast<std::uint16_t>(wrapper),
          .bucket = bucket};
}

Work sum_of_eight(Communicator& group) {
  return group.all_reduce(floats, 8, DType::f32, ReduceOp::sum);
}

Work sum_from(Communicator& group, const Source& source) {
  const SourceScope scope(group, source);
  return sum_of_eight(group);
}

Work sum_as(Communicator& group, const Wire& wire) {
  return group.all_reduce(floats, 8, ReduceOp::avg, wire);
}

/// Gathers three elements of each rank, but five of one.
Work gather_more_of(std::size_t rank, Communicator& group) {
  std::vector<std::size_t> counts(static_cast<std::size_t>(group.size()), 3);
  counts[rank] = 5;
  return group.all_gather(floats, many_floats, counts, DType::f32);
}

const Mismatch mismatches[] = {
    {"Dtype", sum_of_eight,
     [](auto& g) { return g.all_reduce(doubles, 8, DType::f64, ReduceOp::sum); },
     "all_reduce sum float64 of 8 elements",
     "float32 of 8 elements as on rank 0; issue the same operations in the same order on all "
     "ranks, "
     "with tensors of equal shape and dtype"},
    {"Length", [](auto& g) { return g.all_reduce(doubles, 8, DType::f64, ReduceOp::sum); },
     [](auto& g) { return g.all_reduce(many_floats, 65544, DType::f32, ReduceOp::sum); },
     "all_reduce sum float32 of 65544 elements", "all_reduce sum float64 of 8 elements"},
    {"Shape",
     [](auto& g) {
       return g.all_reduce(floats, 6, DType::f32, ReduceOp::sum, {.shape = {2, 3}});
     },
     [](auto& g) {
       return g.all_reduce(floats, 6, DType::f32, ReduceOp::sum, {.shape = {3, 2}});
     },
     "[3, 2]",
     "[2, 3] as on rank 0; issue the same operations in the same order on all ranks, with tensors "
     "of "
     "equal shape and dtype"},
    {"Parts", [](auto& g) { return g.all_gather(floats, many_floats, 2, DType::f32); },
     [](auto& g) { return g.all_gather(floats, many_floats, 3, DType::f32); }, "float32 of 3",
     "equal shape and dtype; for parts that differ, the all_gather with counts"},
    {"ReduceOp", sum_of_eight,
     [](auto& g) { return g.all_reduce(floats, 8, DType::f32, ReduceOp::max); }, "all_reduce max",
     "all_reduce sum"},
    {"Order", sum_of_eight, [](auto& g) { return g.broadcast(floats, 8, DType::f32, 0); },
     "broadcast float32 root 0", "all_reduce sum float32"},
    {"Root", [](auto& g) { return g.broadcast(floats, 8, DType::f32, 0); },
     [](auto& g) { return g.broadcast(floats, 8, DType::f32, 1); }, "root 1", "root 0"},
    {"Bool", [](auto& g) { return g.all_reduce(shorts, 8, DType::boolean, ReduceOp::sum); },
     [](auto& g) { return g.all_reduce(shorts, 8, DType::u8, ReduceOp::sum); },
     "all_reduce sum uint8", "all_reduce sum bool"},
    {"Premultiplied",
     [](auto& g) { return g.all_reduce(floats, 8, DType::f32, premultiplied_sum(1)); },
     sum_of_eight, "all_reduce sum float32", "all_reduce premultiplied_sum float32"},
    {"Barrier", [](auto& g) { return g.barrier(); },
     [](auto& g) { return g.all_gather(floats, floats + 8, 2, DType::f32); }, "all_gather float32",
     "expected barrier"},
    {"Refusal", [](auto& g) { return g.all_gather(floats, floats + 8, 2, DType::f32); },
     [](auto& g) {
       const auto number = static_cast<std::uint16_t>(Collective::all_gather);
       return g.barrier(
           {.shape = {'3'}, .source = {.content = Source::Content::refusal, .number = number}});
     },
     "all_gather with arguments that it refused (3)", "expected all_gather float32"},
    {"Wire", [](auto& g) { return sum_as(g, {.dtype = DType::f16}); },
     [](auto& g) { return sum_as(g, {.dtype = DType::bf16}); },
     "all_reduce avg float32 as bfloat16 of 8 elements",
     "expected all_reduce avg float32 as float16"},
    {"Clip", [](auto& g) { return sum_as(g, {.clip = 1}); },
     [](auto& g) { return sum_as(g, {.clip = 2}); }, "all_reduce avg float32",
     "dimensions or wire"},
    {"Counts", [](auto& g) { return gather_more_of(0, g); },
     [](auto& g) { return gather_more_of(1, g); }, " elements with other counts",
     "as on rank 0; pass equal counts, shapes and options on all ranks"},
    {"PartsWithCounts", [](auto& g) { return g.all_to_all(floats, many_floats, 4, DType::f32); },
     [](auto& g) {
       const std::vector<std::size_t> counts(static_cast<std::size_t>(g.size()), 4);
       return g.all_to_all(floats, many_floats, counts, counts, DType::f32);
     },
     "all_to_all float32 of ", "expected all_to_all float32 of 4"},
    {"Wrapper", [](auto& g) { return sum_from(g, bucket_of(1, 0)); },
     [](auto& g) { return sum_from(g, bucket_of(2, 0)); },
     "for bucket 0 of the gradients of DistributedDataParallel #2, expected all_reduce sum float32 "
     "of 8 elements for bucket 0 of the gradients of DistributedDataParallel #1 as on rank 0",
     "; construct and use wrappers in the same order on all ranks"},
    {"Bucket", [](auto& g) { return sum_from(g, bucket_of(1, 0)); },
     [](auto& g) { return sum_from(g, bucket_of(1, 1)); },
     "for bucket 1 of the gradients of DistributedDataParallel #1, expected all_reduce sum float32 "
     "of 8 elements for bucket 0 of the gradients of DistributedDataParallel #1 as on rank 0",
     "issue the same operations in the same order"},
    {"NoWrapper", [](auto& g) { return sum_from(g, bucket_of(1, 0)); },
     [](auto& g) { return sum_from(g, Source()); }, "all_reduce sum float32 of 8 elements, ",
     "for bucket 0 of the gradients"},
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

TEST(Timeout, OfAGroupNamesTheGroup) {
  const auto error = HasSubstr("barrier #1 of group 1 (ranks 1, 0) waited 0.2 s for rank 1");
  expect_errors(2, error, [](const auto& world) {
    const auto group = world->split(0, 1 - world->rank());
    while (world->rank() == 1) world->make_progress();
    group->barrier({.timeout = 200ms}).wait();
  });
}

TEST(Mismatches, OfAMessageAreNamedOnBothSides) {
  for (const bool any : {false, true}) {
    const auto texts = what_ranks_threw(2, [any](const auto& group) {
      if (group->rank() == 0) group->send(floats, 4, DType::f32, 1, 7).wait();
      if (group->rank() == 1 && any) group->recv(doubles, 5, DType::f32, any_source, 7).wait();
      if (group->rank() == 1) group->recv(doubles, 4, DType::f64, 0, 7).wait();
      if (any) group->barrier().wait();
    });
    EXPECT_THAT(texts, Each(AllOf(HasSubstr("message #1 from rank 0 to rank 1 differs"),
                                  HasSubstr("4 elements of float32 with tag 7"),
                                  HasSubstr(any ? "5 elements of float32 with tag 7"
                                                : "4 elements of float64 with tag 7"))));
  }
}

/// Rank 0 may go on, as in MPI, and leaves the world.
TEST(Mismatches, TagsThatDifferAreNamedByTheReceiver) {
  const auto texts = what_ranks_threw(2, [](const auto& group) {
    if (group->rank() == 0) group->send(floats, 4, DType::f32, 1, 7).wait();
    if (group->rank() == 1) group->recv(floats + 16, 4, DType::f32, 0, 8).wait();
  });
  EXPECT_EQ(texts[0], "");
  EXPECT_THAT(texts[1], HasSubstr("rank 0 left the world before recv #1 from rank 0, expected tag "
                                  "8, got tag 7 from rank 0"));
}

TEST(Mismatches, TheOddOneOutIsNamedEvenIfItIsRank0) {
  const auto texts = what_ranks_threw(3, [](const auto& group) {
    const std::size_t count = group->rank() == 0 ? 9 : 8;
    group->all_reduce(floats + 16 * group->rank(), count, DType::f32, ReduceOp::sum).wait();
  });
  EXPECT_THAT(texts, Each(AllOf(HasSubstr("rank 0 got all_reduce sum float32 of 9"),
                                HasSubstr("of 8 elements as on rank 1"))));
}

TEST(Mismatches, CountsOfAnAllToAllThatDifferAreNamed) {
  for (const std::size_t more : {0, 100'000}) {
    const auto texts = what_ranks_threw(3, [more](const auto& group) {
      const bool odd = group->rank() == 1;
      const std::vector<std::size_t> sent{2 + more, 2 + more, odd ? 3 + more : 2 + more};
      const std::vector<std::size_t> received(3, 2 + more);
      std::vector<float> input(6 + 3 * more + 1);
      std::vector<float> output(6 + 3 * more);
      group->all_to_all(input.data(), output.data(), sent, received, DType::f32).wait();
      group->barrier().wait();  // rank 0 has no part in the difference
    });
    EXPECT_THAT(texts, Each(HasSubstr(lockstep::detail::concat(
                           "collective #1 differs between ranks: all_to_all got ", 3 + more,
                           " elements from rank 1 for rank 2, expected ", 2 + more,
                           " as in the output of rank 2"))));
  }
}

TEST(Mismatches, ScopesOfSourcesAreNested) {
  run_ranks(1, [](const auto& group) {
    const auto outer = bucket_of(1, -1);
    const SourceScope of_wrapper(*group, outer);
    { const SourceScope of_bucket(*group, bucket_of(1, 3)); }
    EXPECT_EQ(group->source(), outer);
  });
}

TEST(Mismatches, RanksOfSplitGroupsAreNamedAsInTheWorld) {
  const auto texts = what_ranks_threw(4, [](const auto& group) {
    const auto pair = group->split(group->rank() / 2, 0);
    const std::size_t count = group->rank() == 3 ? 9 : 8;
    pair->all_reduce(floats + 16 * group->rank(), count, DType::f32, ReduceOp::sum).wait();
    group->barrier().wait();
  });
  EXPECT_THAT(texts, Each(AllOf(HasSubstr("collective #1 of group 1 (ranks 2, 3) differs between "
                                          "ranks: rank 3 got all_reduce sum float32 of 9"),
                                HasSubstr("as on rank 2"))));
}

}  // namespace
}  // namespace lockstep::testing
