#include <gtest/gtest.h>

#include "comm/communicator.h"
#include "tests/comm/conformance.h"
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
  check_denormals(*group);
}

const ProcessBody conformance("conformance", check_all);

class HostConformance : public ::testing::TestWithParam<int> {};

TEST_P(HostConformance, Threads) { run_ranks(GetParam(), check_all); }
TEST_P(HostConformance, Processes) { expect_processes(GetParam(), "conformance"); }

INSTANTIATE_TEST_SUITE_P(Ranks, HostConformance, ::testing::Values(1, 2, 3, 4, 7));

}  // namespace
}  // namespace lockstep::testing
