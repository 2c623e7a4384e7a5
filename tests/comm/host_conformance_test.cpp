#include <gtest/gtest.h>

#include "comm/communicator.h"
#include "tests/comm/conformance.h"
#include "tests/comm/oracle.h"
#include "tests/ranks.h"

namespace lockstep::testing {
namespace {

void check_all(const std::shared_ptr<Communicator>& group) {
  check_collectives(*group);
  check_in_flight(*group);
  check_skew(*group);
  check_places(*group);
  check_split(*group);
  check_messages(*group);
  check_tags(*group);
  check_waits(*group);
  check_denormals(*group);
}

/// Every input is in group memory, and the output of one rank is not.
void check_all_gather_into_one_ordinary_output(const std::shared_ptr<Communicator>& group) {
  constexpr std::size_t count = 50'001;
  const auto size = static_cast<std::size_t>(group->size());
  const Buffer input(*group, Place::group, make_input(DType::f32, count, group->rank(), 1));
  const Buffer output(*group, group->rank() == 0 ? Place::elsewhere : Place::group,
                      Bytes(size * count * sizeof(float)));
  group->all_gather(input.data(), output.data(), count, DType::f32).wait();
  Bytes expected;
  for (int rank = 0; rank < group->size(); ++rank) {
    const auto part = make_input(DType::f32, count, rank, 1);
    expected.insert(expected.end(), part.begin(), part.end());
  }
  output.expect(expected, "all_gather");
  group->barrier().wait();  // no rank leaves while another one still writes
}

const ProcessBody conformance("conformance", check_all);

class HostConformance : public ::testing::TestWithParam<int> {};

TEST_P(HostConformance, Threads) { run_ranks(GetParam(), check_all); }
TEST_P(HostConformance, Processes) { expect_processes(GetParam(), "conformance"); }

TEST_P(HostConformance, AllGatherIntoOneOrdinaryOutput) {
  run_ranks(GetParam(), check_all_gather_into_one_ordinary_output);
}

INSTANTIATE_TEST_SUITE_P(Ranks, HostConformance, ::testing::Values(1, 2, 3, 4, 7));

}  // namespace
}  // namespace lockstep::testing
