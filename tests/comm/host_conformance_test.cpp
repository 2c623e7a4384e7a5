#include <array>

#include "comm/host/host.h"
#include "core/system/denormals_guard.h"
#include "kernels/reduce.h"
#include "lockstep/denormals.h"
#include "tests/comm/conformance.h"
#include "tests/comm/failures.h"
#include "tests/matchers.h"

namespace lockstep::testing {
namespace {

// The accesses of a step with share_memory, without LibTorch, so that the thread sanitizer sees
// them: src/parallel/update/shared_update.cpp orders them by the same collectives.

/// The memory that each rank passes, in rank order.
std::vector<std::byte*> memory_of_ranks(Communicator& group,
                                        const std::shared_ptr<std::byte>& own) {
  std::vector<std::int64_t> places(static_cast<std::size_t>(group.size()));
  const auto place = static_cast<std::int64_t>(*group.place_of(own.get()));
  group.all_gather(&place, places.data(), 1, DType::i64).wait();
  std::vector<std::byte*> memory;
  for (const auto at : places) memory.push_back(group.at_place(static_cast<std::uint64_t>(at)));
  return memory;
}

/// Each rank computes gradients from all parameters, adds its range of all ranks' gradients and
/// updates its range of the parameters.
void check_steps(const std::shared_ptr<Communicator>& group, std::size_t count) {
  const auto size = static_cast<std::size_t>(group->size());
  const auto own = detail::slice_of(count, sizeof(float), group->rank(), group->size());
  const auto bytes = std::max<std::size_t>(count * sizeof(float), 1);
  const auto gradients = group->allocate(bytes);
  const auto block = group->allocate(group->rank() == 0 ? bytes : 1);
  auto* const gradient = reinterpret_cast<float*>(gradients.get());
  auto* const parameters = reinterpret_cast<float*>(memory_of_ranks(*group, block).front());
  std::vector<const std::byte*> inputs;  // of this rank's range
  for (const auto* of_rank : memory_of_ranks(*group, gradients))
    inputs.push_back(of_rank + own.begin * sizeof(float));
  if (group->rank() == 0) std::fill_n(parameters, count, 1024.0f);
  group->barrier().wait();

  for (int step = 0; step < 8; ++step) {
    for (std::size_t i = 0; i < count; ++i)
      gradient[i] = parameters[i] * static_cast<float>(group->rank() + 1);
    std::int64_t changed = 1;  // the agreement that follows each backward
    group->all_reduce(&changed, 1, DType::i64, ReduceOp::max).wait();
    std::vector<float> sum(own.length);
    auto* const output = reinterpret_cast<std::byte*>(sum.data());
    kernels::reduce(DType::f32, ReduceOp::sum, inputs, {{output}}, own.length);
    // The sum over ranks is a known multiple of the parameter, so each step halves it.
    const auto factor = 1.0f / static_cast<float>(size * (size + 1));
    for (std::size_t i = 0; i < own.length; ++i) parameters[own.begin + i] -= factor * sum[i];
    group->barrier().wait();
  }
  for (std::size_t i = 0; i < count; ++i) ASSERT_NEAR(parameters[i], 4.0f, 1e-4f) << i;
  group->barrier().wait();  // no rank releases the block while another one reads it
}

const ProcessBody conformance("conformance", [](const auto& group) {
  check_backend(*group);
  check_new_group(*group);
});

class HostConformance : public ::testing::TestWithParam<int> {};

TEST_P(HostConformance, Threads) {
  run_ranks(GetParam(), [](const auto& group) { check_backend(*group); });
}
TEST_P(HostConformance, Processes) { expect_processes(GetParam(), "conformance"); }

TEST_P(HostConformance, NewGroups) {
  run_ranks(GetParam(), [](const auto& group) { check_new_group(*group); });
}

TEST_P(HostConformance, EachStepOfASharedUpdateReadsWhatAllRanksWrote) {
  for (const std::size_t count : {0, 1, 17, 1000, 4099}) {
    run_ranks(GetParam(), [=](const auto& group) { check_steps(group, count); });
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, HostConformance, ::testing::Values(1, 2, 3, 4, 7));

TEST(NewGroups, AFailureEndsOnlyTheGroup) {
  run_ranks(3, [](const auto& group) {
    if (group->rank() < 2) {
      const auto pair = group->new_group(std::vector{0, 1});
      const std::size_t count = 8 + static_cast<std::size_t>(group->rank());
      std::array<float, 16> data{};
      EXPECT_THAT([&] { pair->all_reduce(data.data(), count, DType::f32, ReduceOp::sum).wait(); },
                  ThrowsMessage<CommError>(HasSubstr("differs between ranks: rank 1")));
    }
    EXPECT_EQ(sum_of_ranks(*group, group->rank()), 3);
    if (group->rank() < 2) sum_of_ranks(*group->new_group(std::vector{0, 1}), 0);
  });
}

TEST(NewGroups, ErrorsNameRanksOfTheWorld) {
  run_ranks(3, [](const auto& group) {
    if (group->rank() == 0) return;
    const auto pair = group->new_group(std::vector{1, 2});
    if (group->rank() == 2) return;
    EXPECT_THAT([&] { pair->barrier().wait(); },
                ThrowsMessage<CommError>(HasSubstr("rank 2 left the world")));
  });
}

TEST(NewGroups, AMemberThatDoesNotCallIsNamed) {
  run_ranks(
      2,
      [](const auto& group) {
        if (group->rank() == 1) return;
        EXPECT_THAT(message_of<TimeoutError>([&] {
                      (void)group->new_group(std::vector{0, 1});
                    }),
                    HasSubstr("new_group: rank 0 of 2 waited 0.3 s for ranks 1 to call"));
      },
      300ms);
}

class HostDenormals : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!lockstep::detail::can_flush_denormals) GTEST_SKIP() << "not known to flush here";
  }
};

// Ranks' own threads, the progress thread, OpenMP's threads and loaders rely on it.
TEST(Denormals, ThreadStartsWithItsCreatorsSetting) {
  if (!lockstep::detail::can_flush_denormals) GTEST_SKIP() << "not known to flush here";
  for (const bool flush : {true, false}) {
    const lockstep::detail::DenormalsGuard guard(flush);
    std::thread([&] {
      EXPECT_EQ(flushes_denormals(), flush);
      flush_denormals(!flush);
    }).join();
    EXPECT_EQ(flushes_denormals(), flush) << "a thread changed its creator's setting";
  }
}

TEST_P(HostDenormals, AreFlushedInSums) {
  const lockstep::detail::DenormalsGuard flushed(true);
  run_ranks(GetParam(), [](const auto& group) {
    check_denormals(*group);
    check_collectives(*group);
    check_in_flight(*group);
  });
}

/// The errors of all ranks, each of which joins with that setting; "" where there is none.
std::vector<std::string> what_joining_threw(int n, const std::function<bool(int rank)>& flushes) {
  const auto world = host::World::create(n);
  std::vector<std::function<void()>> ranks;
  for (int rank = 0; rank < n; ++rank) {
    ranks.emplace_back([&, rank] {
      flush_denormals(flushes(rank));
      host::create(world, rank, {.timeout = std::chrono::seconds(20)});
    });
  }
  return what_calls_threw(ranks);
}

TEST_P(HostDenormals, DifferenceIsNamedOnEveryRank) {
  const int n = GetParam();
  EXPECT_THAT(what_joining_threw(n, [](int) { return true; }), Each(""));
  if (n == 1) return;
  EXPECT_THAT(what_joining_threw(n, [](int rank) { return rank != 1; }),
              Each(HasSubstr("denormals are kept on rank 1, expected flushed as on rank 0; set "
                             "LOCKSTEP_FLUSH_DENORMALS")));
  EXPECT_THAT(what_joining_threw(n, [](int rank) { return rank != 0; }),
              Each(HasSubstr("denormals are flushed on rank 1, expected kept as on rank 0")));
}

INSTANTIATE_TEST_SUITE_P(Ranks, HostDenormals, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace lockstep::testing
