#include "tests/comm/conformance.h"

#include <gtest/gtest.h>

#include "comm/communicator.h"
#include "lockstep/error.h"
#include "tests/adapter/adapted_ranks.h"

namespace lockstep::testing {
namespace {

class AdapterConformance : public ::testing::TestWithParam<int> {};

TEST_P(AdapterConformance, OverAPlainBackend) {
  expect_adapted_ranks(GetParam(), [](const Group& world) {
    auto& group = world.communicator();
    check_collectives(group);
    check_in_flight(group);
    check_skew(group);
    check_places(group);
    check_split(group);
    check_messages(group);
    check_waits(group);
    check_denormals(group);
  });
}

TEST(AdapterMessages, FromAnySourceAreRefused) {
  expect_adapted_ranks(2, [](const Group& world) {
    auto& group = world.communicator();
    float number = 0;
    EXPECT_THROW(group.recv(&number, 1, DType::f32, any_source).wait(), BackendUnavailable);
    group.barrier().wait();
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, AdapterConformance, ::testing::Values(1, 2, 3, 4, 7));

}  // namespace
}  // namespace lockstep::testing
