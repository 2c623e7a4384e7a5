#include "parallel/agree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lockstep/error.h"
#include "tests/parallel/models.h"

namespace lockstep::testing {
namespace {

std::string disagreement(const Group& world, const std::vector<std::string>& lines) {
  try {
    detail::agree(world, "here", lines);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(Agree, TakesEqualLines) {
  for (const int ranks : {1, 2, 3, 7}) {
    on_ranks(ranks, [](const Group& world) {
      EXPECT_EQ(disagreement(world, {}), "");
      EXPECT_EQ(disagreement(world, {"one", "", "three"}), "");
    });
  }
}

TEST(Agree, NamesTheFirstDifferenceAndTheRanks) {
  on_ranks(7, [](const Group& world) {
    const auto me = "here rank " + std::to_string(world.rank()) + " of 7: ";
    EXPECT_THAT(
        disagreement(world,
                     {"same", world.rank() % 3 == 0 ? "x" : "y", std::to_string(world.rank())}),
        ::testing::AllOf(::testing::StartsWith(me),
                         ::testing::HasSubstr("x on ranks 0, 3, 6; y on ranks 1, 2, 4, 5")));
    std::vector<std::string> fewer{"same"};
    if (world.rank() != 4) fewer.emplace_back("more");
    EXPECT_THAT(disagreement(world, fewer), ::testing::HasSubstr("nothing on rank 4"));
    EXPECT_THAT(disagreement(world, world.rank() == 0 ? std::vector<std::string>{}
                                                      : std::vector<std::string>{"a"}),
                ::testing::HasSubstr("nothing on rank 0; a on ranks 1, 2, 3, 4, 5, 6"));
  });
}

}  // namespace
}  // namespace lockstep::testing
