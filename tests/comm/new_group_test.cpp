#include <array>

#include "comm/communicator.h"
#include "tests/comm/conformance.h"
#include "tests/comm/failures.h"
#include "tests/matchers.h"
#include "tests/ranks.h"

// Groups that only their members create.

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

void check(const std::shared_ptr<Communicator>& group) { check_new_group(*group); }

const ProcessBody body("new_group", check);

class NewGroup : public ::testing::TestWithParam<int> {};

TEST_P(NewGroup, OfThreads) { run_ranks(GetParam(), check); }
TEST_P(NewGroup, OfProcesses) { expect_processes(GetParam(), "new_group"); }

INSTANTIATE_TEST_SUITE_P(Ranks, NewGroup, ::testing::Values(1, 2, 3, 4, 7));

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
        if (group->rank() == 0) {
          EXPECT_THAT(
              [&] {
                group->new_group(std::vector{0, 1});
              },
              ThrowsMessage<TimeoutError>(
                  HasSubstr("new_group: rank 0 of 2 waited 0.3 s for ranks 1 to call")));
        }
      },
      300ms);
}

}  // namespace
}  // namespace lockstep::testing
