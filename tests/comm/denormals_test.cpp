#include "lockstep/denormals.h"

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "comm/host/host.h"
#include "core/system/denormals_guard.h"
#include "lockstep/error.h"
#include "tests/comm/conformance.h"
#include "tests/matchers.h"
#include "tests/ranks.h"

namespace lockstep::testing {
namespace {

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
  std::vector<std::string> texts(static_cast<std::size_t>(n));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      flush_denormals(flushes(rank));
      try {
        host::create(world, rank, {.timeout = std::chrono::seconds(20)});
      } catch (const InvalidArgument& error) {
        texts[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return texts;
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
