#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "comm/communicator.h"
#include "tests/comm/conformance.h"
#include "tests/comm/failures.h"
#include "tests/ranks.h"

// Groups that only their members create.

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

std::int64_t sum_of_ranks(Communicator& group, int rank) {
  std::int64_t sum = rank;
  group.all_reduce(&sum, 1, DType::i64, ReduceOp::sum).wait();
  return sum;
}

/// Every second rank creates a group, in the opposite order.
void check_new_group(const std::shared_ptr<Communicator>& group) {
  std::vector<int> members;
  for (int rank = group->size() - 1; rank >= 0; --rank) {
    if (rank % 2 == 0) members.push_back(rank);
  }
  if (group->rank() % 2 == 0) {
    const auto evens = group->new_group(members);
    const auto last = static_cast<int>(members.size()) - 1;
    if (evens->rank() != last - group->rank() / 2 || evens->size() != last + 1) {
      throw std::runtime_error("new_group: got another rank or size");
    }
    if (evens->world_rank(0) != members[0]) throw std::runtime_error("new_group: world_rank(0)");
    if (sum_of_ranks(*evens, group->rank()) != last * (last + 1)) {
      throw std::runtime_error("new_group: got another sum");
    }
    check_messages(*evens);
    // The same members again, while the first group exists.
    sum_of_ranks(*evens->new_group(std::vector{evens->rank()}), 0);
    sum_of_ranks(*group->new_group(members), 0);
  }
  group->barrier().wait();
}

const ProcessBody body("new_group", check_new_group);

class NewGroup : public ::testing::TestWithParam<int> {};

TEST_P(NewGroup, OfThreads) { run_ranks(GetParam(), check_new_group); }
TEST_P(NewGroup, OfProcesses) { expect_processes(GetParam(), "new_group"); }

INSTANTIATE_TEST_SUITE_P(Ranks, NewGroup, ::testing::Values(1, 2, 3, 4, 7));

TEST(NewGroups, AFailureEndsOnlyTheGroup) {
  run_ranks(3, [](const auto& group) {
    if (group->rank() < 2) {
      const auto pair = group->new_group(std::vector{0, 1});
      const std::size_t count = 8 + static_cast<std::size_t>(group->rank());
      std::array<float, 16> data{};
      EXPECT_THAT([&] { pair->all_reduce(data.data(), count, DType::f32, ReduceOp::sum).wait(); },
                  ::testing::ThrowsMessage<CommError>(HasSubstr("differs between ranks: rank 1")));
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
                ::testing::ThrowsMessage<CommError>(HasSubstr("rank 2 left the world")));
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
              ::testing::ThrowsMessage<TimeoutError>(
                  HasSubstr("new_group: rank 0 of 2 waited 0.3 s for ranks 1 to call")));
        }
      },
      300ms);
}

}  // namespace
}  // namespace lockstep::testing
