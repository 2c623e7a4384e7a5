#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "comm/communicator.h"
#include "core/system/denormals_guard.h"
#include "lockstep/denormals.h"
#include "lockstep/group_from_backend.h"
#include "lockstep/init.h"
#include "tests/adapter/adapted_ranks.h"
#include "tests/adapter/memory_backend.h"
#include "tests/comm/conformance.h"

namespace lockstep::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

TEST(AdapterDenormals, AreFlushedUnlessAskedOtherwise) {
  if (!lockstep::detail::can_flush_denormals) GTEST_SKIP() << "not known to flush here";
  const auto expect = [](bool flush) {
    return [flush](const Group& world) {
      EXPECT_EQ(flushes_denormals(), flush);
      check_denormals(world.communicator());
    };
  };
  EXPECT_THAT(what_adapted_ranks_threw(3, expect(true)), Each(""));
  const auto kept = [](int) { return false; };
  EXPECT_THAT(what_adapted_ranks_threw(3, expect(false), {.flush_denormals = kept}), Each(""));
}

TEST(AdapterDenormals, ThatDifferAreNamedOnEveryRank) {
  if (!lockstep::detail::can_flush_denormals) GTEST_SKIP() << "not known to flush here";
  const auto not_rank_1 = [](int rank) { return rank != 1; };
  const auto texts = what_adapted_ranks_threw(3, [](const Group&) { ADD_FAILURE() << "joined"; },
                                              {.flush_denormals = not_rank_1});
  EXPECT_THAT(texts,
              Each(HasSubstr("denormals are kept on rank 1, expected flushed as on rank 0")));
}

TEST(AdapterDenormals, StayAsSpawnSetThem) {
  if (!lockstep::detail::can_flush_denormals) GTEST_SKIP() << "not known to flush here";
  const auto boxes = std::make_shared<Mailboxes>();
  spawn(2,
        [&](const Group& world) {
          const auto group =
              group_from_backend(c10::make_intrusive<MemoryBackend>(boxes, world.rank(), 2));
          EXPECT_FALSE(flushes_denormals());
          check_denormals(group.communicator());
        },
        {.flush_denormals = false});
}

}  // namespace
}  // namespace lockstep::testing
