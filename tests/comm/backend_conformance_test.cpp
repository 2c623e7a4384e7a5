#include <array>
#include <numeric>

#include "comm/host/host.h"
#include "core/system/denormals_guard.h"
#include "lockstep/denormals.h"
#include "tests/comm/conformance.h"
#include "tests/comm/failures.h"
#include "tests/comm/loopback/loopback.h"
#include "tests/matchers.h"

namespace lockstep::testing {
namespace {

const ProcessBody conformance("conformance", [](const auto& group) {
  check_backend(*group);
  check_new_group(*group);
});

TEST(Loopback, MeetsTheRequirementsOnEveryBackend) {
  check_backend(*create_loopback(std::chrono::seconds(10)));
}

class HostConformance : public ::testing::TestWithParam<int> {};

TEST_P(HostConformance, Threads) {
  run_ranks(GetParam(), [](const auto& group) { check_backend(*group); });
}
TEST_P(HostConformance, Processes) { expect_processes(GetParam(), "conformance"); }

TEST_P(HostConformance, NewGroups) {
  run_ranks(GetParam(), [](const auto& group) { check_new_group(*group); });
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
                    HasSubstr("new_group: rank 0 of 2 waited 0.3 s for rank 1 to call"));
      },
      300ms);
}

// The members are the same ones but for the last.
TEST(NewGroups, ALongListIsNotTakenForAnother) {
  run_ranks(
      18,
      [](const auto& group) {
        if (group->rank() == 16) return;
        std::vector<int> members(17);
        std::iota(members.begin(), members.end(), 0);
        if (group->rank() == 17) members.back() = 17;
        EXPECT_THROW((void)group->new_group(members), CommError);
      },
      500ms);
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
